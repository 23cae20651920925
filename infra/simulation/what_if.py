"""Simulation of a recorded ledger under another configuration, compared with its cell's decisions."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from infra.errors import CommandError
from infra.figures.board import Board
from infra.figures.jobs import JobTimeline
from infra.figures.summary import summarise
from infra.simulation.event_queue import EventQueue
from infra.simulation.recording import ID_PREFIX, LedgerRecording, timed
from infra.simulation.simulator import SOURCE, sent_at
from infra.simulation.virtual_fleet import VirtualFleet
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision, Envelope
from schemas.decisions import JobStateName
from schemas.fleet import (
    CommandRefused,
    FleetEvent,
    NodeHeartbeat,
    NodeOffline,
    NodeOnline,
    NodeSeen,
    NodeSilent,
    RunReport,
)
from schemas.rules import RulesAdopted
from schemas.solves import SolveFinished
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.replay.files import read_ledger_file

Step = tuple[LedgerEvent, list[Decision]]
"""An event of a ledger and the decisions about it."""


class LedgerSimulation:
    """Simulation of one cell under the ledger's or another configuration.

    Jobs, withdrawals, requests for quotes, vendors' quotes, ticks and events about nodes are repeated, in the
    ledger's order and with its ids. Reports of runs and answers of solvers come from virtual ones; a recorded
    report only shows that the node was present. A lost node sends no reports until it is back, and nodes that
    the ledger does not have are always present. The rules are those of the configuration to the end.
    """

    def __init__(self, configuration: CellConfigured, recording: LedgerRecording, pace: float) -> None:
        """Begin before the first event; `pace` is as in `VirtualRunner`."""
        self._configuration = configuration
        self._recording = recording
        self._cell = Cell(configuration.cell)
        self._offset = 0
        self._queue = EventQueue()
        self._fleet = VirtualFleet(configuration, pace, self._queue, self._present_until_s)
        nodes = self._fleet.nodes
        self._added = {node: nodes[node] for node in nodes if not recording.has_node(node)}
        self._own_models = {
            node.id: zone.base_model for zone in recording.configuration.zones for node in zone.nodes
        }

    def feed(self, time_s: float, envelope: Envelope) -> Iterator[Step]:
        """Process a recorded event, after all events that are due before it."""
        yield from self.run_until(time_s)
        match event := envelope.event:
            case CellConfigured() if self._cell.configuration is None:
                yield self._handle(time_s, replace(envelope, event=self._configuration, stored=None))
                for node in self._added.values():
                    yield self._simulated(time_s, node.online())
            case CommandRefused() | RunReport():
                sender = self._fleet.nodes.get(event.node)
                report = sender and NodeSeen(**sender.online().model_dump(exclude={"runs"}))
                if report and self._cell.nodes is not None and self._cell.nodes.awaits(report):
                    yield self._simulated(time_s, report)
            case SolveFinished() | RulesAdopted():
                pass
            case _ if type(event) in self._fleet.answers:
                pass
            case NodeOnline() | NodeHeartbeat() | NodeSeen() | NodeSilent() | NodeOffline():
                if event.node in self._fleet.nodes:
                    yield self._handle(time_s, self._of_node(envelope, event))
            case _:
                yield self._handle(time_s, envelope)

    def run_until(self, time_s: float) -> Iterator[Step]:
        """Process all events that are due."""
        while (due := self._queue.pop(time_s)) is not None:
            yield self._simulated(*due)

    def _of_node(self, envelope: Envelope, event: FleetEvent) -> Envelope:
        """Replace the recorded base model of a node's zone by the one that the zone has now."""
        if isinstance(event, NodeOnline) and event.base_model == self._own_models.get(event.node):
            online = self._fleet.nodes[event.node].online()
            return envelope if online == event else replace(envelope, event=online, stored=None)
        return envelope

    def _present_until_s(self, node: str, time_s: float) -> float | None:
        return math.inf if node in self._added else self._recording.present_until_s(node, time_s)

    def _simulated(self, time_s: float, event: Event) -> Step:
        id = f"{ID_PREFIX}{self._recording.generation}-{self._offset}"
        time = sent_at(max(time_s, self._configuration.epoch_s))
        return self._handle(time_s, Envelope(id, SOURCE, time, event))

    def _handle(self, time_s: float, envelope: Envelope) -> Step:
        entry = LedgerEvent(self._offset, envelope)
        self._offset += 1
        decisions = self._cell.handle(entry)
        self._fleet.react(time_s, envelope.event, decisions)
        return entry, decisions


_TIME_RESOLUTION_S = 0.001
"""Resolution of the times of events: the last report of a ledger may be due this much later."""


@dataclass(frozen=True)
class JobEnd:
    """State of a job at the end of a log."""

    state: JobStateName = "waiting"
    reason: str | None = None
    """Reason of a rejection or a refund."""
    payment_micros: int = 0
    """Payment of its user, less refunds."""
    finish_run: str | None = None
    """Run in which its work was done."""

    @classmethod
    def of(cls, job: JobTimeline) -> Self:
        """Return the present state of a job."""
        finish_run = job.finish_run if job.state == "completed" else None
        return cls(job.state, job.reason or None, job.payment_micros or 0, finish_run)


@dataclass(frozen=True)
class JobDifference:
    """One job in the ledger and in both simulations."""

    before: JobTimeline
    simulated: JobTimeline
    after: JobTimeline

    @property
    def simulation_is_exact(self) -> bool:
        """Whether simulating the ledger's own configuration changes nothing."""
        return JobEnd.of(self.before) == JobEnd.of(self.simulated)

    @property
    def differs(self) -> bool:
        """Whether not all three are the same."""
        return not JobEnd.of(self.before) == JobEnd.of(self.simulated) == JobEnd.of(self.after)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        submission = self.before.submission
        assert submission is not None
        return {
            "job_id": submission.job_id,
            "user": submission.user,
            "zone": submission.zone,
            "offered_micros": submission.terms.offered_micros,
            "differs": self.differs,
            "before": vars(JobEnd.of(self.before)),
            "simulated": vars(JobEnd.of(self.simulated)),
            "after": vars(JobEnd.of(self.after)),
        }


@dataclass(frozen=True)
class WhatIf:
    """Result of a what-if: three logs, folded."""

    before: Board
    """Decisions of the ledger's cell, folded again."""
    simulated: Board
    """Decisions simulated under the ledger's own configuration: the effect of simulating alone."""
    after: Board
    """Decisions simulated under the other configuration."""

    def jobs(self) -> Iterator[JobDifference]:
        """Yield all jobs in the order of submission."""
        for job_id, job in self.before.jobs.by_id.items():
            if job.submission is not None:
                others = (
                    side.jobs.by_id.get(job_id, JobTimeline(job_id)) for side in (self.simulated, self.after)
                )
                yield JobDifference(job, *others)

    @property
    def simulation_is_exact(self) -> bool:
        """Whether simulating alone changes nothing, so every difference is an effect of the change."""
        return all(job.simulation_is_exact for job in self.jobs())

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        sides = {"before": self.before, "simulated": self.simulated, "after": self.after}
        totals = {name: summarise(board).as_json() for name, board in sides.items()}
        for figures in totals.values():
            del figures["adapters"]
        return {
            "simulation_is_exact": self.simulation_is_exact,
            "jobs": [job.as_json() for job in self.jobs()],
            "totals": totals,
        }


def ledger_configuration(path: Path, cell: str | None) -> CellConfigured:
    """Return the first configuration of a cell in a ledger file; None for `cell` accepts any.

    Raises:
        ReplayError: the file is not a valid ledger.
        CommandError: the ledger does not configure the cell.
    """
    for entry in read_ledger_file(path):
        event = entry.envelope.event
        if isinstance(event, CellConfigured) and cell in (None, event.cell):
            return event
    raise CommandError(f"{path}: the ledger configures no cell" + (f" {cell}" if cell else ""))


def recorded(path: Path, cell: str | None, own: CellConfigured) -> tuple[LedgerRecording, Board]:
    """Fold a ledger as its cell did.

    Args:
        path: Ledger file.
        cell: Cell that the user chose; None chooses the only one.
        own: Configuration of the cell.

    Raises:
        ReplayError: the file is not a valid ledger.
        CommandError: there are several cells, and none was chosen.
    """
    recording, before, folded = LedgerRecording(own), Board(own.cell), Cell(own.cell)
    for time_s, entry in timed(events_of_cell(path, own.cell, others_allowed=cell is not None)):
        recording.add(time_s, entry)
        _fold(before, (entry, folded.handle(entry)))
    return recording, before


def what_if(
    path: Path,
    recording: LedgerRecording,
    before: Board,
    alternative: CellConfigured,
    pace: float,
    on_step: Callable[[Step], None] = lambda _step: None,
    on_progress: Callable[[float], None] = lambda _part: None,
) -> WhatIf:
    """Simulate a ledger under its own and under another configuration, side by side.

    Args:
        path: Ledger file.
        recording: Result of `recorded`.
        before: Result of `recorded`.
        alternative: The other configuration.
        pace: Speed of the nodes, as in `VirtualRunner`.
        on_step: Gets every event and its decisions under the other configuration.
        on_progress: Gets the part that is over.

    Raises:
        ReplayError: the file is no longer a valid ledger.
    """
    own = recording.configuration
    simulated, after = Board(own.cell), Board(own.cell)
    unchanged = LedgerSimulation(own, recording, pace)
    changed = LedgerSimulation(alternative, recording, pace)

    def advance(steps: Iterator[Step], other_steps: Iterator[Step]) -> None:
        for step in steps:
            _fold(simulated, step)
        for step in other_steps:
            _fold(after, step)
            on_step(step)

    for number, (time_s, entry) in enumerate(
        timed(events_of_cell(path, own.cell, others_allowed=True)), start=1
    ):
        advance(unchanged.feed(time_s, entry.envelope), changed.feed(time_s, entry.envelope))
        on_progress(number / before.events)
    end_s = recording.end_s + _TIME_RESOLUTION_S
    advance(unchanged.run_until(end_s), changed.run_until(end_s))
    return WhatIf(before, simulated, after)


def _fold(board: Board, step: Step) -> None:
    entry, decisions = step
    board.fold_event(entry)
    for decision in decisions:
        board.fold_decision(decision)


def events_of_cell(path: Path, cell: str, others_allowed: bool) -> Iterator[LedgerEvent]:
    """Yield the events of one cell of a ledger file.

    Raises:
        ReplayError: the file is not a valid ledger.
        CommandError: another cell has events too, and `others_allowed` is False.
    """
    for entry in read_ledger_file(path):
        found = entry.envelope.event.cell
        if found == cell:
            yield entry
        elif not others_allowed:
            raise CommandError(
                f"{path}: the ledger has several cells, such as {cell} and {found}: choose with --cell"
            )
