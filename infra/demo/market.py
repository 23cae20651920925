"""The demo's market: bids for adapters, and an executor that is killed while it trains."""

import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from infra.demo.stage import Stage
from infra.views.jobs import Job
from infra.views.text import counted
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import Task
from schemas.auction.quotes import VendorQuoted
from schemas.codec import Decision, Envelope
from schemas.decisions import JobCompleted
from schemas.fleet import NodeOnline, RunStarted
from schemas.jobs import JobSubmitted

HELD_SHARE = 0.2
"""Part of the bids, the last ones, that wait for the killed node, so that there is work for it."""
HOLD_LIMIT_S = 110.0
"""They wait no longer than this from the start on."""

_COMPLETED_BEFORE_KILL = 2


@dataclass
class Market:
    """Submits the bids of a workload, and kills an executor once."""

    stage: Stage
    bids: Sequence[TimedEvent[JobSubmitted]]
    quotes: Sequence[VendorQuoted] = ()
    killed_node: str | None = None
    recovered: bool = False
    """Whether the node of the killed executor has come online and begun a run since."""
    finished: bool = False
    """Whether every job is over."""
    _has_reported: bool = False
    """Whether the executor has said since the kill that it is online."""
    _ids: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._ids = frozenset(timed.event.job_id for timed in self.bids)

    @property
    def returned(self) -> bool:
        """Whether the killed executor's node is online again."""
        if self.killed_node is None or not self._has_reported:
            return False
        return self.stage.board.nodes.by_id[self.killed_node].status == "up"

    @property
    def completed(self) -> list[JobCompleted]:
        """The ends of its jobs that were trained to their end."""
        return [job.completed for job in self._jobs if job.completed is not None]

    @property
    def shortcomings(self) -> list[str]:
        """What was to be seen and was not."""
        found = [] if self.finished else ["not every bid's job was over in time"]
        if self.killed_node is None:
            found.append("no executor was killed")
        elif not self.recovered and not self.returned:
            found.append(f"{self.killed_node} did not come online again after its executor was killed")
        elif not self.recovered:
            found.append(f"{self.killed_node} came online again after the kill and began no run since")
        return found

    def play(self) -> Iterator[None]:
        """Submit each bid at its time, the last ones not before the killed node is online again; until every
        job is over and that node is."""
        for quote in self.quotes:
            self.stage.send(quote, "vendors")
        in_order = sorted(self.bids, key=lambda timed: timed.time_s)
        first_held = len(in_order) - math.ceil(HELD_SHARE * len(in_order))
        waiting, held = deque(in_order[:first_held]), deque(in_order[first_held:])
        hold_until_s = time.monotonic() + HOLD_LIMIT_S
        while not self.finished or not (self.returned or self.killed_node is None):
            self._submit_due(waiting)
            over = sum(job.is_over for job in self._jobs)
            if held and not waiting and self._may_release(over == first_held, hold_until_s):
                waiting, held = _not_before(time.time(), held), deque()
            self.finished = over == len(in_order)
            yield
            if self.killed_node is None:
                self._kill_when_it_hurts()

    def note(self, records: Sequence[Envelope | Decision]) -> None:
        """See `Scene`."""
        for record in records:
            if isinstance(record, Envelope):
                self._note_recovery(record)

    @property
    def _jobs(self) -> list[Job]:
        """Those of its bids."""
        return [job for id, job in self.stage.board.jobs.by_id.items() if id in self._ids]

    def _kill_when_it_hurts(self) -> None:
        """Kill the executor that trains most, once the first adapters are done."""
        training = [node for job in self._jobs if job.samples_done for node in job.nodes]
        if len(self.completed) < _COMPLETED_BEFORE_KILL or not training:
            return
        node = max(sorted(set(training)), key=training.count)
        pid = self.stage.deployment.executors[self.stage.cell.cell, node].pid
        if pid is not None:
            self.stage.show.say(
                f"*** SIGKILL to the executor of {node} (process {pid}), which trains for "
                f"{counted(training.count(node), 'job')}"
            )
            os.kill(pid, signal.SIGKILL)
            self.killed_node = node

    def _submit_due(self, waiting: deque[TimedEvent[JobSubmitted]]) -> None:
        while waiting and waiting[0].time_s <= time.time():
            self.stage.send(waiting.popleft().event)

    def _may_release(self, idle: bool, hold_until_s: float) -> bool:
        """Whether the bids held back may go out; `idle` is whether all jobs before them are over."""
        if self.returned:
            return True
        if self.killed_node is None and idle:
            return True  # nothing trains that a kill could hurt
        if time.monotonic() < hold_until_s:
            return False
        self.stage.show.say(
            f"*** the last bids wait no longer: {self.killed_node or 'no killed node'} is not back"
        )
        return True

    def _note_recovery(self, record: Envelope) -> None:
        if self.recovered or self.killed_node is None:
            return
        event = record.event
        # The ledger keeps their order: what an executor begins after it is online, it begins since the kill.
        if isinstance(event, NodeOnline) and event.node == self.killed_node:
            self._has_reported = True
            self.stage.show.say(f"*** the executor of {self.killed_node} is back")
        elif self._has_reported and isinstance(event, RunStarted) and event.node == self.killed_node:
            self.recovered = True
            self.stage.show.say(f"*** the executor of {self.killed_node} trains {event.job_id}")


def _not_before(start_s: float, bids: Iterable[TimedEvent[JobSubmitted]]) -> deque[TimedEvent[JobSubmitted]]:
    """The bids, those due before `start_s` moved to it together with their deadlines."""
    return deque(_delayed(timed, max(start_s - timed.time_s, 0.0)) for timed in bids)


def _delayed(timed: TimedEvent[JobSubmitted], delay_s: float) -> TimedEvent[JobSubmitted]:
    deadline_s = Task.of(timed.event).deadline_s + delay_s
    terms = timed.event.terms.model_copy(update={"deadline_s": deadline_s})
    return TimedEvent(timed.time_s + delay_s, timed.event.model_copy(update={"terms": terms}))
