"""The demo's market phase, and its display."""

import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.live import Live

from infra.deployment.deployment import Deployment
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from infra.log.reader import BoardFollower
from infra.views.board import Board
from infra.views.tables import board_view
from infra.views.words import happening
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import Task
from schemas.codec import Decision, Envelope
from schemas.fleet import NodeOnline, RunStarted
from schemas.jobs import JobSubmitted

_JOBS_SHOWN = 16
_STANDING_S = 15.0


class Show(Protocol):
    """Takes what happens."""

    def say(self, line: str) -> None:
        """A line about the demo itself."""

    def update(self, board: Board | None, records: Sequence[Envelope | Decision]) -> None:
        """The board after these records."""


class LiveShow:
    """A table that is drawn again and again."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, line: str) -> None:
        self._live.console.print(line)

    def update(self, board: Board | None, records: Sequence[Envelope | Decision]) -> None:  # noqa: ARG002
        if board is not None:
            self._live.update(board_view(board, _JOBS_SHOWN))


class PlainShow:
    """A line for each thing that happens, and now and then one for how the training stands."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = self._stood_s = time.monotonic()

    def say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._start_s:6.1f} s  {line}", markup=False)

    def update(self, board: Board | None, records: Sequence[Envelope | Decision]) -> None:
        for record in records:
            line = happening(record) if isinstance(record, Decision) else None
            if line is not None:
                self.say(line)
        if board is not None and time.monotonic() - self._stood_s >= _STANDING_S:
            self._stood_s = time.monotonic()
            jobs = board.jobs.by_id.values()
            running = [job for job in jobs if job.nodes and job.first_loss is not None]
            losses = ", ".join(f"{job.job_id} {job.first_loss:.2f} → {job.loss:.2f}" for job in running)
            if losses:
                self.say(f"losses: {losses}")


@contextmanager
def show(console: Console) -> Iterator[Show]:
    """The show that suits where the output goes."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield LiveShow(live)
    else:
        yield PlainShow(console)


HELD_SHARE = 0.2
"""Part of the bids, the last ones, that wait for the killed node, so that there is work for it."""
HOLD_LIMIT_S = 110.0
"""They wait no longer than this from the start on."""

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
    killed_node: str | None = None
    recovered: bool = False
    """Whether the node of the killed executor has come online and begun a run since."""
    _has_reported: bool = False
    """Whether the executor has said since the kill that it is online."""

    @property
    def board(self) -> Board:
        """The cell as it stands."""
        return self.follower.boards[self.cell]

    @property
    def returned(self) -> bool:
        """Whether the killed executor's node is online again."""
        if self.killed_node is None or not self._has_reported:
            return False
        return self.board.nodes.by_id[self.killed_node].status == "up"

    @property
    def _over(self) -> int:
        return sum(job.is_over for job in self.board.jobs.by_id.values())

    def await_nodes(self, limit_s: float) -> None:
        """Return when every node is online.

        Raises:
            CommandError: one is not in time, or its executor cannot be kept running.
            ReadError: the log cannot be read.
        """
        deadline_s = time.monotonic() + limit_s
        self.follower.catch_up()
        while waiting := [node.node for node in self.board.nodes.by_id.values() if node.status != "up"]:
            if time.monotonic() > deadline_s:
                raise CommandError(f"not online within {limit_s:g} s: {', '.join(waiting)}")
            self.deployment.keep_running()
            self.read(_POLL_S)

    def run(self, bids: Sequence[TimedEvent[JobSubmitted]], deadline_s: float) -> bool:
        """Submit each bid at its time and wait until every job is over and the killed node is online again.

        The last bids are held back until it is. False if a job is not over at `deadline_s` of the monotonic
        clock.

        Raises:
            CommandError: a service cannot be kept running.
            PublishError: the broker does not take a bid.
            ReadError: the log cannot be read.
        """
        in_order = sorted(bids, key=lambda timed: timed.time_s)
        first_held = len(in_order) - math.ceil(HELD_SHARE * len(in_order))
        waiting, held = deque(in_order[:first_held]), deque(in_order[first_held:])
        hold_until_s = time.monotonic() + HOLD_LIMIT_S
        while time.monotonic() < deadline_s:
            self._submit_due(waiting)
            over = self._over
            if held and not waiting and self._may_release(over == first_held, hold_until_s):
                waiting, held = _not_before(time.time(), held), deque()
            if over == len(in_order) and (self.returned or self.killed_node is None):
                return True
            self.deployment.keep_running()
            self.read(_POLL_S)
            if self.killed_node is None:
                self._kill_when_it_hurts()
        return self._over == len(in_order)

    def drain(self, quiet_s: float, deadline_s: float) -> None:
        """Take in what is still there: until nothing comes for `quiet_s`, or `deadline_s` has passed."""
        while self.read(max(min(quiet_s, deadline_s - time.monotonic()), 0.0)):
            if time.monotonic() >= deadline_s:
                return

    def read(self, timeout_s: float) -> bool:
        """Take in what has come; False if nothing has."""
        records = self.follower.poll(timeout_s)
        for record in records:
            self._note_recovery(record)
        self.show.update(self.follower.boards.get(self.cell), records)
        return bool(records)

    def _kill_when_it_hurts(self) -> None:
        """Kill the executor that trains most, once the first adapters are done."""
        jobs = self.board.jobs
        training = [node for job in jobs.by_id.values() if job.samples_done for node in job.nodes]
        if len(jobs.in_state("completed")) < _COMPLETED_BEFORE_KILL or not training:
            return
        node = max(sorted(set(training)), key=training.count)
        pid = self.deployment.executors[self.board.cell, node].pid
        if pid is not None:
            self.show.say(
                f"*** SIGKILL to the executor of {node} (process {pid}), which trains {training.count(node)}"
            )
            os.kill(pid, signal.SIGKILL)
            self.killed_node = node

    def _submit_due(self, waiting: deque[TimedEvent[JobSubmitted]]) -> None:
        while waiting and waiting[0].time_s <= time.time():
            self.publisher.publish(waiting.popleft().event)

    def _may_release(self, idle: bool, hold_until_s: float) -> bool:
        """Whether the bids held back may go out; `idle` is whether all jobs before them are over."""
        if self.returned:
            return True
        if self.killed_node is None and idle:
            return True  # nothing trains that a kill could hurt
        if time.monotonic() < hold_until_s:
            return False
        self.show.say(f"*** the last bids wait no longer: {self.killed_node or 'no killed node'} is not back")
        return True

    def _note_recovery(self, record: Envelope | Decision) -> None:
        if isinstance(record, Decision) or self.recovered or self.killed_node is None:
            return
        event = record.event
        # The ledger keeps their order: what an executor begins after it is online, it begins since the kill.
        if isinstance(event, NodeOnline) and event.node == self.killed_node:
            self._has_reported = True
            self.show.say(f"*** the executor of {self.killed_node} is back")
        elif self._has_reported and isinstance(event, RunStarted) and event.node == self.killed_node:
            self.recovered = True
            self.show.say(f"*** the executor of {self.killed_node} trains {event.job_id}")


def _not_before(start_s: float, bids: Iterable[TimedEvent[JobSubmitted]]) -> deque[TimedEvent[JobSubmitted]]:
    """The bids, those due before `start_s` moved to it together with their deadlines."""
    return deque(_delayed(timed, max(start_s - timed.time_s, 0.0)) for timed in bids)


def _delayed(timed: TimedEvent[JobSubmitted], delay_s: float) -> TimedEvent[JobSubmitted]:
    deadline_s = Task.of(timed.event).deadline_s + delay_s
    terms = timed.event.terms.model_copy(update={"deadline_s": deadline_s})
    return TimedEvent(timed.time_s + delay_s, timed.event.model_copy(update={"terms": terms}))
