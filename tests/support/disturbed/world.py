"""The model: a cell, its nodes, and all that can go wrong between them."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.commands import NodeCommand
from schemas.decisions import JobOutcome
from schemas.fleet import NodeSeen, NodeSilent
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.support.disturbed.nodes import CELL, LightRunners, ModelNode, VirtualTime

STEP_S = 1.0
TICK_S = 2.0
SILENT_S = 15.0
"""Intake reports a node silent that has been down for this time."""
_LONGEST_DELAY_S = 20.0


@dataclass(frozen=True)
class Troubles:
    """Probabilities of faults, of each message or of each node and second."""

    lost: float = 0.05
    repeated: float = 0.1
    delayed: float = 0.15
    """Probability that later messages overtake one."""
    killed: float = 0.01
    journal_lost: float = 0.1
    """Share of the kills."""
    cell_stopped: float = 0.002
    """The cell's clock jumps by up to ten minutes."""


NO_TROUBLES = Troubles(lost=0.0, repeated=0.0, delayed=0.0, killed=0.0, cell_stopped=0.0)


@dataclass
class World:
    """The model. Messages take a step at least."""

    cell: CellConfigured
    runners: LightRunners
    root: Path
    rng: random.Random
    answer: Callable[[SolveRequested], SolveFinished] | None = None
    troubles: Troubles = NO_TROUBLES
    clock: VirtualTime = field(default_factory=VirtualTime)

    def __post_init__(self) -> None:
        self.clock.now_s = self.cell.epoch_s
        self.state = Cell(CELL)
        self.decisions: list[Decision] = []
        self.ends: list[JobOutcome] = []
        self._offset = 0
        self._ids = itertools.count()
        self._in_flight: list[tuple[float, int, Callable[[], None]]] = []
        self._next_tick_s = self.cell.epoch_s
        self._down_since_s: dict[str, float] = {}
        self._back_s: dict[str, float] = {}
        self._cell_back_s = 0.0
        names = [node.id for zone in self.cell.zones for node in zone.nodes]
        self.nodes = {
            name: ModelNode(name, self.root, self.clock, self.runners, self._report) for name in names
        }
        self.fold("configuration", self.cell)
        for node in self.nodes.values():
            # Some come up long after the cell has begun to count on them.
            self._back_s[node.name] = self.clock.now_s + self.rng.choice([0.0, 0.0, 40.0])

    def fold(self, id: str, event: Event) -> None:
        """Have the cell fold an event now, and carry out what it decides."""
        decisions = self.state.handle(LedgerEvent(self._offset, Envelope(id, "model", "", event)))
        self._offset += 1
        assert not list(self.state.broken_invariants())
        self.decisions += decisions
        for decision in decisions:
            outcome = decision.outcome
            if isinstance(outcome, NodeCommand):
                record, values = decision.canonical, self.nodes[outcome.node].values
                self._send(lambda record=record, values=values: values.append(record))  # type: ignore[misc]
            elif isinstance(outcome, SolveRequested) and self.answer is not None:
                answer = self.answer(outcome)
                self._send(lambda answer=answer: self.fold(f"solve-{next(self._ids)}", answer))  # type: ignore[misc]
            elif isinstance(outcome, JobOutcome) and outcome.STATE in ("completed", "refunded", "withdrawn"):
                self.ends.append(outcome)

    def step(self) -> None:
        """Let a step of virtual time pass."""
        self.clock.now_s += STEP_S
        now_s = self.clock.now_s
        self._trouble()
        if now_s >= self._cell_back_s:
            while self._in_flight and self._in_flight[0][0] <= now_s:
                heapq.heappop(self._in_flight)[2]()
            if now_s >= self._next_tick_s:
                self._next_tick_s = now_s + TICK_S
                self.fold(f"tick-{next(self._ids)}", ClockTicked(cell=CELL, time_s=now_s))
            self._watch()
        for node in self.nodes.values():
            node.turn()
        self.runners.advance(now_s)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds / STEP_S)):
            self.step()

    def occupied(self) -> dict[str, list[str]]:
        """Return the holders of GPUs, by node."""
        return {name: held for name, node in self.nodes.items() if (held := node.occupied())}

    def _report(self, id: str, event: Event) -> None:
        self._send(lambda: self.fold(id, event))

    def _send(self, deliver: Callable[[], None]) -> None:
        rng, troubles = self.rng, self.troubles
        if rng.random() < troubles.lost:
            return
        for _ in range(2 if rng.random() < troubles.repeated else 1):
            late_s = rng.uniform(0, _LONGEST_DELAY_S) if rng.random() < troubles.delayed else 0.0
            heapq.heappush(self._in_flight, (self.clock.now_s + late_s, next(self._ids), deliver))

    def _trouble(self) -> None:
        rng, now_s = self.rng, self.clock.now_s
        for name, node in self.nodes.items():
            if node.is_up and rng.random() < self.troubles.killed:
                node.kill()
                if rng.random() < self.troubles.journal_lost:
                    node.lose_journal()
                self._down_since_s[name] = now_s
                self._back_s[name] = now_s + rng.choice([1.0, 5.0, 40.0])
            elif not node.is_up and now_s >= self._back_s[name]:
                self._down_since_s.pop(name, None)
                node.start()
        if rng.random() < self.troubles.cell_stopped:
            self._cell_back_s = now_s + rng.uniform(10.0, 600.0)

    def _watch(self) -> None:
        """See which nodes are present, as intake does."""
        assert self.state.nodes is not None
        for name, node in self.nodes.items():
            since_s = self._down_since_s.get(name)
            if since_s is not None and self.clock.now_s - since_s >= SILENT_S:
                if name in self.state.nodes.watched:
                    self.fold(
                        f"silent-{next(self._ids)}", NodeSilent(cell=CELL, node=name, silent_s=SILENT_S)
                    )
            elif node.is_up:
                heard = NodeSeen(**node.online().model_dump(exclude={"runs"}))
                if self.state.nodes.awaits(heard):
                    self.fold(f"heard-{next(self._ids)}", heard)
