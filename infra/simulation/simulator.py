"""Running a cell through a workload on virtual time."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from infra.simulation.event_queue import EventQueue, Moments, Rank
from infra.simulation.virtual_fleet import VirtualFleet, VirtualRunner
from infra.workloads.timed import TimedEvent, check_time
from schemas.base import MAX_TIME_S, Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked, tick_interval_s
from schemas.codec import Decision, Envelope
from schemas.jobs import JobSubmitted
from schemas.registry import TOPIC_BY_EVENT
from schemas.topics import JOBS
from streams.cell.cell import Cell, LedgerEvent

SOURCE = "millrace/simulate"
"""The CloudEvents source of whatever a simulation sends."""

_SLOTS_AFTER_LAST_DEADLINE = 2
"""A slot's report is waited for one slot long."""
_LONGEST_WAIT_S = 30 * 86_400.0
"""From the last input on. A deadline beyond it is far: no simulation goes on until then for its sake."""


@dataclass(frozen=True)
class Step:
    """An event of a simulation, and what the cell decided because of it."""

    time_s: float
    entry: LedgerEvent
    decisions: list[Decision]


@dataclass(frozen=True)
class SimulatedRun:
    """What came of it: a ledger and a log like any other."""

    ledger: list[LedgerEvent]
    decisions: list[Decision]


class Participant(Protocol):
    """Whoever else speaks to a cell because of what happens there, such as the lender of a zone."""

    def react(self, step: Step) -> Moments:
        """What it says because of a step, from that moment on."""


class Simulation:
    """One cell, its nodes and what else speaks to it, from the cell's epoch until all is over.

    It ends with the first tick at which there are no more inputs, every job that ends by itself is over, and
    nodes have nothing more to report but the runs of services. It does not end before the last deadline, far
    ones left out, so simulations of the same jobs under different policies cover the same time. What is not
    over 30 days after the last input and the last deadline is given up.
    """

    def __init__(
        self,
        cell: CellConfigured,
        inputs: Sequence[TimedEvent[Event]],
        pace: float = 1.0,
        fold: Callable[[Cell, LedgerEvent], list[Decision]] = Cell.handle,
        solve_s: float = 0.0,
        participants: Sequence[Participant] = (),
        runners: Mapping[str, VirtualRunner] = MappingProxyType({}),
    ) -> None:
        """Put what does not depend on the cell's decisions into the queue.

        Args:
            inputs: what users, operators and other systems say, from the cell's epoch on. Of those at the
                same time, what comes on the topic `jobs` is last.
            pace: the speed of every node, as a part of the speed that the zones plan with.
            fold: `Cell.handle`, or what calls it once per event and watches.
            solve_s: so much virtual time a solve takes.
            participants: who reacts to what happens.
            runners: by name, in place of the simulated runners that the policies bring.

        Raises:
            WorkloadError: it would end beyond what events can speak of.
        """
        self._start_s = cell.epoch_s
        self._last_input_s = max((timed.time_s for timed in inputs), default=cell.epoch_s)
        far_s = self._last_input_s + _LONGEST_WAIT_S
        deadlines_s = [latest_s for timed in inputs if (latest_s := _latest_s(timed.event)) is not None]
        near_s = max((deadline_s for deadline_s in deadlines_s if deadline_s <= far_s), default=cell.epoch_s)
        self._least_end_s = near_s + _SLOTS_AFTER_LAST_DEADLINE * cell.slot_s
        check_time(max(self._least_end_s, far_s))
        self._limit_s = min(max(self._least_end_s, far_s, *deadlines_s), MAX_TIME_S)
        """Beyond that nothing is waited for."""
        self.given_up: str | None = None
        """What is not over at the end, as it had been waited for too long; None where all is."""
        self._tick_s = tick_interval_s(cell)
        self._ticks = 0
        self._cell = Cell(cell.cell)
        self._fold = fold
        self._queue = EventQueue()
        self._fleet = VirtualFleet(cell, pace, self._queue, solve_s=solve_s, runners=runners)
        self._participants = participants
        self._fed = 0
        for event in (cell, *(node.online() for node in self._fleet.nodes.values() if node.runners)):
            self._queue.add(cell.epoch_s, Rank.SET_UP, event)
        for timed in inputs:
            rank = Rank.JOB if TOPIC_BY_EVENT.get(type(timed.event)) == JOBS else Rank.SET_UP
            self._queue.add(timed.time_s, rank, timed.event)

    def run(self, on_progress: Callable[[float], None] = lambda _part: None) -> SimulatedRun:
        """Feed the cell until all is over, and keep everything; `on_progress` is told how much is over."""
        ledger: list[LedgerEvent] = []
        decisions: list[Decision] = []

        def keep(step: Step) -> None:
            ledger.append(step.entry)
            decisions.extend(step.decisions)

        self.pass_on(keep, on_progress)
        return SimulatedRun(ledger, decisions)

    def pass_on(
        self, take: Callable[[Step], None], on_progress: Callable[[float], None] = lambda _part: None
    ) -> None:
        """Feed the cell until all is over, and keep nothing: `take` is given each step."""
        with _no_search_for_cycles():
            for step in self.steps():
                take(step)
                on_progress(self.part_over(step.time_s))

    def part_over(self, time_s: float) -> float:
        """How much of the simulation is over at a virtual time, from 0 to 1."""
        span_s = max(self._least_end_s, self._last_input_s) - self._start_s
        return min((time_s - self._start_s) / span_s, 1.0)

    def steps(self) -> Iterator[Step]:
        """Feed the cell until all is over, or nothing more is waited for (`given_up`); once."""
        self._add_tick()
        while (due := self._queue.pop()) is not None:
            time_s, event = due
            yield self._feed(time_s, event)
            if isinstance(event, ClockTicked):
                if self._is_over(time_s):
                    return
                self._add_tick()

    def _is_over(self, time_s: float) -> bool:
        """Whether nothing comes after this tick that the simulation waits for any longer."""
        if self._ticks <= int((self._least_end_s - self._start_s) / self._tick_s):
            return False
        if time_s <= self._last_input_s:
            return False  # an input of the same moment may come after the tick
        live = self._cell.jobs.live.values()
        awaited = [job.job_id for job in live if job.workload.ends_by_itself]
        if not awaited and (live or not self._queue.holds(Rank.REPORT)):
            return True
        if time_s + self._tick_s > self._limit_s:
            days = (time_s - self._last_input_s) / 86_400
            what = "nodes still report"
            if awaited:
                what = f"{len(awaited)} of the jobs are not over, such as {', '.join(awaited[:3])}"
            self.given_up = f"{days:.0f} days after the last input {what}"
            return True
        return False

    def _add_tick(self) -> None:
        time_s = self._start_s + self._ticks * self._tick_s
        self._queue.add(time_s, Rank.TICK, ClockTicked(cell=self._cell.name, time_s=time_s))
        self._ticks += 1

    def _feed(self, time_s: float, event: Event) -> Step:
        entry = LedgerEvent(self._fed, Envelope(f"simulated-{self._fed}", SOURCE, sent_at(time_s), event))
        self._fed += 1
        step = Step(time_s, entry, self._fold(self._cell, entry))
        self._fleet.react(time_s, event, step.decisions)
        for participant in self._participants:
            self._queue.add_all(Rank.SET_UP, participant.react(step))
        return step


def _latest_s(event: Event) -> float | None:
    """By when the job that an event submits is over, if it does and its terms say so."""
    return event.terms.latest_s if isinstance(event, JobSubmitted) else None


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Jobs, and whatever is kept of events and decisions, grow all the while and hold no cycles: to look
    through them for some takes a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@lru_cache(maxsize=64)
def sent_at(time_s: float) -> str:
    """A virtual time as the time of an event."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
