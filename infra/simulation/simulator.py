"""Running a cell through a workload on virtual time."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from infra.simulation.virtual_fleet import Agenda, Rank, VirtualFleet
from infra.workloads.bids import TimedBid, check_time
from schemas.auction.bids import Task
from schemas.auction.quotes import VendorQuoted
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked, tick_interval_s
from schemas.codec import Decision, Envelope
from streams.cell.cell import Cell, LedgerEvent

SOURCE = "millrace/simulate"
"""The CloudEvents source of whatever a simulation sends."""

_SLOTS_AFTER_LAST_DEADLINE = 2
"""A slot's report is waited for one slot long."""


@dataclass(frozen=True)
class SimulatedRun:
    """What came of it: a ledger and a log like any other."""

    ledger: list[LedgerEvent]
    decisions: list[Decision]


class Simulation:
    """One cell, its nodes and its vendors, from the cell's epoch to the end of its last bid."""

    def __init__(
        self,
        cell: CellConfigured,
        bids: Sequence[TimedBid],
        quotes: Sequence[VendorQuoted],
        pace: float = 1.0,
        fold: Callable[[Cell, LedgerEvent], list[Decision]] = Cell.handle,
    ) -> None:
        """Plan everything that does not depend on the cell's decisions.

        Args:
            pace: the speed of every executor, as a part of the speed that the zones plan with.
            fold: `Cell.handle`, or what calls it once per event and watches.

        Raises:
            WorkloadError: it would end beyond what events can speak of.
        """
        self._start_s = cell.epoch_s
        last_deadline_s = max((Task.of(timed.bid).deadline_s for timed in bids), default=cell.epoch_s)
        self._end_s = last_deadline_s + _SLOTS_AFTER_LAST_DEADLINE * cell.slot_s
        check_time(self._end_s)
        self._cell = Cell(cell.cell)
        self._fold = fold
        self._agenda = Agenda()
        self._fleet = VirtualFleet(cell, pace, self._agenda)
        self._ledger: list[LedgerEvent] = []
        self._decisions: list[Decision] = []
        self._plan(cell, bids, quotes)

    def run(self, on_progress: Callable[[float], None] = lambda _part: None) -> SimulatedRun:
        """Feed the cell until nothing is left to happen; `on_progress` is told how much is over."""
        with _no_search_for_cycles():
            while self._agenda:
                time_s, event = self._agenda.pop()
                self._feed(time_s, event)
                on_progress((time_s - self._start_s) / (self._end_s - self._start_s))
        return SimulatedRun(self._ledger, self._decisions)

    def _plan(self, cell: CellConfigured, bids: Sequence[TimedBid], quotes: Sequence[VendorQuoted]) -> None:
        self._agenda.add(cell.epoch_s, Rank.SET_UP, cell)
        for executor in self._fleet.executors.values():
            self._agenda.add(cell.epoch_s, Rank.SET_UP, executor.online())
        for quote in quotes:
            self._agenda.add(cell.epoch_s, Rank.SET_UP, quote)
        for timed in bids:
            self._agenda.add(timed.time_s, Rank.BID, timed.bid)
        self._plan_ticks(cell)

    def _plan_ticks(self, cell: CellConfigured) -> None:
        interval_s = tick_interval_s(cell)
        for number in range(int((self._end_s - cell.epoch_s) / interval_s) + 1):
            time_s = cell.epoch_s + number * interval_s
            self._agenda.add(time_s, Rank.TICK, ClockTicked(cell=cell.cell, time_s=time_s))

    def _feed(self, time_s: float, event: Event) -> None:
        offset = len(self._ledger)
        entry = LedgerEvent(offset, Envelope(f"simulated-{offset}", SOURCE, sent_at(time_s), event))
        self._ledger.append(entry)
        for decision in self._fold(self._cell, entry):
            self._decisions.append(decision)
            self._fleet.carry_out(time_s, decision)


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
