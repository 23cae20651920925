"""Everything around a cell in a simulation: nodes whose runners only report, and a solver."""

import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Protocol

from infra.simulation.event_queue import EventQueue, Rank
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.commands import Command
from schemas.fleet import NodeOnline
from schemas.kinds import KINDS, SOLVES
from schemas.registry import runners_of
from schemas.solves import SolveFinished, SolveRequested


class VirtualRunner(Protocol):
    """Stands in for the runners of one name on all nodes of a cell."""

    def __init__(self, cell: str, pace: float) -> None:
        """`pace` is the speed of every node, as a part of the speed that the zones plan with."""

    def carry_out(
        self, command: Command, time_s: float, until_s: float = math.inf
    ) -> Iterator[tuple[float, Event]]:
        """What a node reports because of a command of this moment, and when.

        Args:
            command: for a runner of this name.
            time_s: no report is earlier.
            until_s: when the node is lost, after which it reports nothing.
        """


@dataclass(frozen=True)
class VirtualNode:
    """A node that is there."""

    cell: str
    node: str
    base_model: str
    runners: tuple[str, ...]

    def online(self) -> NodeOnline:
        """What it says when it starts."""
        return NodeOnline(cell=self.cell, node=self.node, base_model=self.base_model, runners=self.runners)


Presence = Callable[[str, float], float | None]
"""Until when a node is there that is there at this moment, in seconds; None if it is not."""


def always_there(_node: str, _time_s: float) -> float | None:
    """The presence of nodes that are never lost."""
    return math.inf


class VirtualFleet:
    """What becomes of decisions, as events to come."""

    def __init__(
        self,
        cell: CellConfigured,
        pace: float,
        queue: EventQueue,
        until_s: Presence = always_there,
        solve_s: float = 0.0,
    ) -> None:
        """Describe a fleet.

        Args:
            pace: see `VirtualRunner`.
            solve_s: so much virtual time a solve takes, whatever it really does.
        """
        self.nodes = {
            node.id: VirtualNode(
                cell.cell, node.id, zone.base_model, tuple(sorted(runners_of(zone.policy.kind)))
            )
            for zone in cell.zones
            for node in zone.nodes
        }
        self._runners: dict[str, VirtualRunner] = {
            name: resolve_name(reference)(cell.cell, pace)
            for kind in {zone.policy.kind: KINDS[zone.policy.kind] for zone in cell.zones}.values()
            for name, reference in kind.virtual_runners.items()
        }
        self._queue = queue
        self._until_s = until_s
        self._solve_s = solve_s

    def carry_out(self, time_s: float, decision: Decision) -> None:
        """Have done what a decision of this moment asks nodes or solvers to do."""
        match outcome := decision.outcome:
            case Command():
                until_s = self._until_s(outcome.node, time_s)
                if until_s is None:
                    return
                for report_s, report in self._runners[outcome.RUNNER].carry_out(outcome, time_s, until_s):
                    self._queue.add(report_s, Rank.REPORT, report)
            case SolveRequested():
                self._queue.add(time_s + self._solve_s, Rank.ANSWER, _solved(decision.cell, outcome))
                # A simulation looks for no cycles on its own, and a solver's model is a large one.
                gc.collect(0)


def _solved(cell: str, request: SolveRequested) -> SolveFinished:
    # Loaded only now: a solver brings libraries that other policies do not need.
    (solve,) = (solve for solve in SOLVES if isinstance(request.problem, solve.problem))
    began_s = time.perf_counter()
    solution = resolve_name(solve.function)(request.problem, request.time_limit_s)
    return SolveFinished(
        cell=cell,
        zone=request.zone,
        request_id=request.request_id,
        solution=solution,
        solve_s=time.perf_counter() - began_s,
    )
