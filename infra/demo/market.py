"""The demo's market phase: bids come in, adapters are trained, one executor is killed and comes back."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.board import Board
from infra.demo.show import Show
from infra.deployment.deployment import Deployment
from infra.errors import CommandError
from infra.log.following import BoardFollower
from infra.log.publisher import EventPublisher
from infra.workloads.bids import TimedBid
from schemas.codec import Decision, Envelope
from schemas.fleet import RunStarted

_POLL_S = 0.2
_COMPLETED_BEFORE_KILL = 2


@dataclass
class Market:
    """Runs the bids of a workload against a deployment."""

    deployment: Deployment
    follower: BoardFollower
    publisher: EventPublisher
    show: Show
    cell: str
    records: list[Envelope | Decision] = field(default_factory=list)
    """All that was read of the log, in the order in which it was."""
    killed_node: str | None = None
    recovered: bool = False
    """Whether the node of the killed executor has begun a run since."""

    @property
    def board(self) -> Board:
        """The cell as it stands."""
        return self.follower.boards[self.cell]

    def await_nodes(self, limit_s: float) -> None:
        """Return when every node is online.

        Raises:
            CommandError: one is not in time, or its executor cannot be kept running.
            ReadError: the log cannot be read.
        """
        deadline_s = time.monotonic() + limit_s
        self.records += self.follower.catch_up()
        while waiting := [node.node for node in self.board.nodes.values() if node.status != "up"]:
            if time.monotonic() > deadline_s:
                raise CommandError(f"not online within {limit_s:g} s: {', '.join(waiting)}")
            self.deployment.keep_running()
            self.read(_POLL_S)

    def run(self, bids: Sequence[TimedBid], limit_s: float) -> bool:
        """Submit each bid at its time and wait until every job is over; False if that takes beyond `limit_s`.

        Raises:
            CommandError: a service cannot be kept running.
            PublishError: the broker does not take a bid.
            ReadError: the log cannot be read.
        """
        waiting = sorted(bids, key=lambda timed: timed.time_s, reverse=True)
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            while waiting and waiting[-1].time_s <= time.time():
                self.publisher.publish(waiting.pop().bid)
            self.deployment.keep_running()
            self.read(_POLL_S)
            if self.killed_node is None:
                self._kill_when_it_hurts()
            over = sum(row.is_over for row in self.board.jobs.values())
            if not waiting and over == len(bids) and (self.recovered or self.killed_node is None):
                return True
        return False

    def read(self, timeout_s: float) -> bool:
        """Take in what has come; False if nothing has."""
        records = self.follower.poll(timeout_s)
        self.records += records
        for record in records:
            self._note_recovery(record)
        self.show.update(self.follower.boards.get(self.cell), records)
        return bool(records)

    def _kill_when_it_hurts(self) -> None:
        """Kill the executor that trains most, once the first adapters are done."""
        completed = sum(row.state == "completed" for row in self.board.jobs.values())
        training = [row.node for row in self.board.jobs.values() if row.node and row.samples_done]
        if completed < _COMPLETED_BEFORE_KILL or not training:
            return
        node = max(sorted(set(training)), key=training.count)
        pid = self.deployment.executors[node].pid
        if pid is not None:
            self.show.say(
                f"*** SIGKILL to the executor of {node} (process {pid}), which trains {training.count(node)}"
            )
            os.kill(pid, signal.SIGKILL)
            self.killed_node = node

    def _note_recovery(self, record: Envelope | Decision) -> None:
        if isinstance(record, Decision) or self.recovered or self.killed_node is None:
            return
        event = record.event
        restarted = self.deployment.executors[self.killed_node].restarts > 0
        if restarted and isinstance(event, RunStarted) and event.node == self.killed_node:
            self.recovered = True
            self.show.say(f"*** the executor of {self.killed_node} is back and trains {event.job_id}")
