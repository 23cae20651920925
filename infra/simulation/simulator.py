"""Simulation of a cell under a workload on virtual time."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from infra.simulation.event_queue import EventQueue, EventRank, Moments
from infra.simulation.virtual_fleet import VirtualFleet, VirtualRunner
from infra.workloads.timed import TimedEvent, check_time
from schemas.base import MAX_TIME_S, Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked, tick_interval_s
from schemas.codec import Decision, Envelope
from schemas.jobs import JobSubmitted
from schemas.registry import TOPIC_BY_EVENT
from schemas.topics import JOBS
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell

SOURCE = "millrace/simulate"
"""CloudEvents source of the events of a simulation."""

_SLOTS_AFTER_LAST_DEADLINE = 2
"""The reports of a slot may come within the next one."""
_LONGEST_WAIT_S = 30 * 86_400.0
"""Longest time from the last input to a deadline that the simulation waits for."""


@dataclass(frozen=True)
class Step:
    """An event of a simulation, and the cell's decisions about it."""

    time_s: float
    entry: LedgerEvent
    decisions: list[Decision]


@dataclass(frozen=True)
class SimulatedRun:
    """Ledger and log of a simulation."""

    ledger: list[LedgerEvent]
    decisions: list[Decision]


class Participant(Protocol):
    """Service that sends events because of decisions, such as the lender of a zone."""

    def react(self, step: Step) -> Moments:
        """Return events because of a step, from its time on."""


class Simulation:
    """One cell, its nodes and other participants, from the cell's epoch to the end of all jobs.

    It ends with the first tick after the last input at which all jobs that end by themselves are over, and
    nodes have no reports left except those of services. It does not end before the last deadline, far ones
    left out, so simulations of the same jobs under different policies cover the same time. It ends 30 days
    after the last input and the last deadline even if jobs are not over.
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
        """Queue the events that do not depend on the cell's decisions.

        Args:
            cell: Configuration of the cell.
            inputs: Events of users, operators and other systems, from the cell's epoch on. At equal times,
                those of the topic `jobs` are last.
            pace: Speed of every node, as a part of the speed that the zones plan with.
            fold: `Cell.handle`, or a function that calls it once per event.
            solve_s: Virtual time of a solve.
            participants: Services that react to steps.
            runners: Runners by name, in place of the simulated ones of the policies.

        Raises:
            WorkloadError: its end would be too late for events.
        """
        self._start_s = cell.epoch_s
        self._last_input_s = max((timed.time_s for timed in inputs), default=cell.epoch_s)
        far_s = self._last_input_s + _LONGEST_WAIT_S
        deadlines_s = [latest_s for timed in inputs if (latest_s := _latest_s(timed.event)) is not None]
        near_s = max((deadline_s for deadline_s in deadlines_s if deadline_s <= far_s), default=cell.epoch_s)
        self._least_end_s = near_s + _SLOTS_AFTER_LAST_DEADLINE * cell.slot_s
        check_time(max(self._least_end_s, far_s))
        self._limit_s = min(max(self._least_end_s, far_s, *deadlines_s), MAX_TIME_S)
        """Latest end."""
        self.given_up: str | None = None
        """Description of what was not over at the latest end; None where all was."""
        self._tick_s = tick_interval_s(cell)
        self._ticks = 0
        self._cell = Cell(cell.cell)
        self._fold = fold
        self._queue = EventQueue()
        self._fleet = VirtualFleet(cell, pace, self._queue, solve_s=solve_s, runners=runners)
        self._participants = participants
        self._fed = 0
        for event in (cell, *(node.online() for node in self._fleet.nodes.values() if node.runners)):
            self._queue.add(cell.epoch_s, EventRank.SET_UP, event)
        for timed in inputs:
            rank = EventRank.JOB if TOPIC_BY_EVENT.get(type(timed.event)) == JOBS else EventRank.SET_UP
            self._queue.add(timed.time_s, rank, timed.event)

    def run(self, on_progress: Callable[[float], None] = lambda _part: None) -> SimulatedRun:
        """Run to the end, and keep everything; `on_progress` gets the part that is over."""
        ledger: list[LedgerEvent] = []
        decisions: list[Decision] = []

        def keep(step: Step) -> None:
            ledger.append(step.entry)
            decisions.extend(step.decisions)

        self.pass_on(keep, on_progress)
        return SimulatedRun(ledger, decisions)

    def pass_on(
        self, receive: Callable[[Step], None], on_progress: Callable[[float], None] = lambda _part: None
    ) -> None:
        """Run to the end, and keep nothing: `receive` gets each step."""
        with _without_gc():
            for step in self.steps():
                receive(step)
                on_progress(self.part_over(step.time_s))

    def part_over(self, time_s: float) -> float:
        """Return the part of the simulation that is over at a virtual time, from 0 to 1."""
        span_s = max(self._least_end_s, self._last_input_s) - self._start_s
        return min((time_s - self._start_s) / span_s, 1.0)

    def steps(self) -> Iterator[Step]:
        """Yield the steps to the end, or to the latest end (`given_up`). Call it once."""
        self._add_tick()
        while (due := self._queue.pop()) is not None:
            time_s, event = due
            yield self._feed(time_s, event)
            if isinstance(event, ClockTicked):
                if self._is_over(time_s):
                    return
                self._add_tick()

    def _is_over(self, time_s: float) -> bool:
        """Return whether the simulation ends with this tick."""
        if self._ticks <= int((self._least_end_s - self._start_s) / self._tick_s):
            return False
        if time_s <= self._last_input_s:
            return False  # an input of the same time may come after the tick
        live = self._cell.jobs.live.values()
        awaited = [job.job_id for job in live if job.workload.ends_by_itself]
        if not awaited and (live or not self._queue.holds(EventRank.REPORT)):
            return True
        if time_s + self._tick_s > self._limit_s:
            days = (time_s - self._last_input_s) / 86_400
            state = "nodes still report"
            if awaited:
                state = f"{len(awaited)} of the jobs are not over, such as {', '.join(awaited[:3])}"
            self.given_up = f"{days:.0f} days after the last input {state}"
            return True
        return False

    def _add_tick(self) -> None:
        time_s = self._start_s + self._ticks * self._tick_s
        self._queue.add(time_s, EventRank.TICK, ClockTicked(cell=self._cell.name, time_s=time_s))
        self._ticks += 1

    def _feed(self, time_s: float, event: Event) -> Step:
        entry = LedgerEvent(self._fed, Envelope(f"simulated-{self._fed}", SOURCE, sent_at(time_s), event))
        self._fed += 1
        step = Step(time_s, entry, self._fold(self._cell, entry))
        self._fleet.react(time_s, event, step.decisions)
        for participant in self._participants:
            self._queue.add_all(EventRank.SET_UP, participant.react(step))
        return step


def _latest_s(event: Event) -> float | None:
    """Return the time by which a submitted job is over; None without such a time."""
    return event.terms.latest_s if isinstance(event, JobSubmitted) else None


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable the search for reference cycles: jobs, events and decisions have none, and it takes a quarter
    of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@lru_cache(maxsize=64)
def sent_at(time_s: float) -> str:
    """Format a virtual time as the time of an event."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
