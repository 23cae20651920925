"""Running a cell through a workload on virtual time."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from infra.simulation.event_queue import EventQueue, Rank
from infra.simulation.virtual_fleet import VirtualFleet
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked, tick_interval_s
from schemas.codec import Decision, Envelope
from schemas.jobs import JobSubmitted
from streams.cell.cell import Cell, LedgerEvent

SOURCE = "millrace/simulate"
"""The CloudEvents source of whatever a simulation sends."""

_SLOTS_AFTER_LAST_DEADLINE = 2
"""A slot's report is waited for one slot long."""
_LONGEST_WITHOUT_DEADLINE_S = 30 * 86_400.0
"""A job whose terms have no deadline must be over so long after the last job came."""


@dataclass(frozen=True)
class SimulatedRun:
    """What came of it: a ledger and a log like any other."""

    ledger: list[LedgerEvent]
    decisions: list[Decision]


class Simulation:
    """One cell, its nodes and what else speaks to it, from the cell's epoch until its last job is over."""

    def __init__(
        self,
        cell: CellConfigured,
        jobs: Sequence[TimedEvent[JobSubmitted]],
        at_start: Sequence[Event],
        pace: float = 1.0,
        fold: Callable[[Cell, LedgerEvent], list[Decision]] = Cell.handle,
        solve_s: float = 0.0,
    ) -> None:
        """Put what does not depend on the cell's decisions into the queue.

        Args:
            at_start: what is said when the cell begins, such as vendors' quotes.
            pace: the speed of every node, as a part of the speed that the zones plan with.
            fold: `Cell.handle`, or what calls it once per event and watches.
            solve_s: so much virtual time a solve takes.

        Raises:
            WorkloadError: it would end beyond what events can speak of.
        """
        deadlines_s = [latest_s for timed in jobs if (latest_s := timed.event.terms.latest_s) is not None]
        ends_s = max(deadlines_s, default=cell.epoch_s) + _SLOTS_AFTER_LAST_DEADLINE * cell.slot_s
        self._last_arrival_s = max((timed.time_s for timed in jobs), default=cell.epoch_s)
        check_time(max(ends_s, self._last_arrival_s + _LONGEST_WITHOUT_DEADLINE_S))
        self._start_s = cell.epoch_s
        self._end_s = ends_s
        """By then all jobs are over that have a deadline."""
        self._tick_s = tick_interval_s(cell)
        self._ticks = 0
        self._cell = Cell(cell.cell)
        self._fold = fold
        self._queue = EventQueue()
        self._fleet = VirtualFleet(cell, pace, self._queue, solve_s=solve_s)
        self._ledger: list[LedgerEvent] = []
        self._decisions: list[Decision] = []
        for event in (cell, *(node.online() for node in self._fleet.nodes.values()), *at_start):
            self._queue.add(cell.epoch_s, Rank.SET_UP, event)
        for timed in jobs:
            self._queue.add(timed.time_s, Rank.JOB, timed.event)
        self._add_tick()

    def run(self, on_progress: Callable[[float], None] = lambda _part: None) -> SimulatedRun:
        """Feed the cell until the queue is empty; `on_progress` is told how much is over.

        Raises:
            WorkloadError: a job without deadline does not end.
        """
        with _no_search_for_cycles():
            while self._queue:
                time_s, event = self._queue.pop()
                self._feed(time_s, event)
                if isinstance(event, ClockTicked):
                    self._add_tick()
                on_progress(min((time_s - self._start_s) / (self._end_s - self._start_s), 1.0))
        return SimulatedRun(self._ledger, self._decisions)

    def _add_tick(self) -> None:
        """The next tick, if there is more to come."""
        is_due = self._ticks <= int((self._end_s - self._start_s) / self._tick_s)
        time_s = self._start_s + self._ticks * self._tick_s
        if not is_due and (time_s <= self._last_arrival_s or self._cell.jobs.live):
            if time_s > self._last_arrival_s + _LONGEST_WITHOUT_DEADLINE_S:
                days = _LONGEST_WITHOUT_DEADLINE_S / 86_400
                jobs = ", ".join(list(self._cell.jobs.live)[:3])
                raise WorkloadError(
                    f"{days:g} days after the last job came some are not over, such as {jobs}"
                )
            is_due = True
        if is_due:
            self._ticks += 1
            self._queue.add(time_s, Rank.TICK, ClockTicked(cell=self._cell.name, time_s=time_s))

    def _feed(self, time_s: float, event: Event) -> None:
        offset = len(self._ledger)
        entry = LedgerEvent(offset, Envelope(f"simulated-{offset}", SOURCE, sent_at(time_s), event))
        self._ledger.append(entry)
        decisions = self._fold(self._cell, entry)
        self._decisions += decisions
        self._fleet.react(time_s, event, decisions)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """The ledger and the decisions grow all the while and hold no cycles: to look through them for some takes
    a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def sent_at(time_s: float) -> str:
    """A virtual time as the time of an event."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
