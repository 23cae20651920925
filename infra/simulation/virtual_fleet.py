"""The surroundings of a cell in a simulation: nodes whose runners only report, and a solver."""

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Protocol

from infra.simulation.event_queue import EventQueue, Moments, Rank
from schemas.base import Event
from schemas.cells import CellConfigured, Zone
from schemas.changes import ZoneConfigured
from schemas.codec import Decision
from schemas.commands import Command
from schemas.decisions import NodeMoved, ZoneAccepted
from schemas.fleet import NodeOnline
from schemas.kinds import KINDS, SOLVES
from schemas.registry import runners_of
from schemas.solves import SolveFinished, SolveRequested


class VirtualRunner(Protocol):
    """Stands in for the runners of one name on all nodes of a cell."""

    def __init__(self, cell: str, pace: float) -> None:
        """`pace` is the speed of every node, as a part of the speed that the zones plan with."""

    def carry_out(self, command: Command, time_s: float, until_s: float = math.inf) -> Moments:
        """What a node reports because of a command of this moment, and when, in the order of the times.

        Each report is asked for when the one before it is delivered. So the reports of a service may be
        endless, until a later command stops it. Instead of a report there may be None, a moment at which the
        runner sees whether such a command has come before it says what is next.

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
    zone: str
    """The one that it serves."""
    base_model: str
    runners: tuple[str, ...]
    """Empty where its zone commands nothing: then no executor is there, and it says nothing."""

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
        runners: Mapping[str, VirtualRunner] = MappingProxyType({}),
    ) -> None:
        """Describe a fleet.

        Args:
            pace: see `VirtualRunner`.
            solve_s: so much virtual time a solve takes, whatever it really does.
            runners: by name, in place of those that the policies bring.
        """
        self._cell = cell.cell
        self._zones = {zone.id: zone for zone in cell.zones}
        self.nodes = {node.id: self._node(node.id, zone) for zone in cell.zones for node in zone.nodes}
        self._pace = pace
        self._runners = dict(runners)
        """By the name of the runner that each simulates; only those that were needed."""
        self._queue = queue
        self._until_s = until_s
        self._solve_s = solve_s

    def react(self, time_s: float, event: Event, decisions: Iterable[Decision]) -> None:
        """Have done what the decisions about an event of this moment ask nodes or solvers to do."""
        for decision in decisions:
            if isinstance(event, ZoneConfigured) and isinstance(decision.outcome, ZoneAccepted):
                self._configure(time_s, event.zone)
            self._carry_out(time_s, decision)

    def _carry_out(self, time_s: float, decision: Decision) -> None:
        match outcome := decision.outcome:
            case Command():
                until_s = self._until_s(outcome.node, time_s)
                if until_s is None:
                    return
                runner = self._runner(outcome.RUNNER)
                self._queue.add_all(Rank.REPORT, runner.carry_out(outcome, time_s, until_s))
            case NodeMoved(to_zone=None):
                self.nodes.pop(outcome.node, None)
            case NodeMoved(to_zone=str() as zone):
                self._start(time_s, self._node(outcome.node, self._zones[zone]))
            case SolveRequested():
                self._queue.add(time_s + self._solve_s, Rank.ANSWER, _solved(decision.cell, outcome))
                # A simulation looks for no cycles on its own, and a solver's model is a large one.
                gc.collect(0)

    def _configure(self, time_s: float, zone: Zone) -> None:
        """Have the nodes of a zone started again if it asks something else of them now."""
        self._zones[zone.id] = zone
        for node in [node for node in self.nodes.values() if node.zone == zone.id]:
            if node != (changed := self._node(node.node, zone)):
                self._start(time_s, changed)

    def _start(self, time_s: float, node: VirtualNode) -> None:
        """Start a node's executor with what its zone needs."""
        self.nodes[node.node] = node
        if node.runners and self._until_s(node.node, time_s) is not None:
            self._queue.add(time_s, Rank.REPORT, node.online())

    def _runner(self, name: str) -> VirtualRunner:
        if name not in self._runners:
            (reference,) = {
                kind.virtual_runners[name] for kind in KINDS.values() if name in kind.virtual_runners
            }
            self._runners[name] = resolve_name(reference)(self._cell, self._pace)
        return self._runners[name]

    def _node(self, node: str, zone: Zone) -> VirtualNode:
        runners = tuple(sorted(runners_of(zone.policy.kind)))
        return VirtualNode(self._cell, node, zone.id, zone.base_model, runners)


def _solved(cell: str, request: SolveRequested) -> SolveFinished:
    # Loaded only now: a solver brings libraries that other policies do not need.
    solve = SOLVES[type(request.problem)]
    began_s = time.perf_counter()
    solution = resolve_name(solve.function)(request.problem, request.time_limit_s)
    return SolveFinished(
        cell=cell,
        zone=request.zone,
        request_id=request.request_id,
        solution=solution,
        solve_s=time.perf_counter() - began_s,
    )
