"""Nodes and solver of a cell in a simulation: the nodes' runners only send reports."""

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Protocol

from infra.simulation.event_queue import EventQueue, EventRank, Moments
from infra.tools import installed_tools
from schemas.base import Event
from schemas.cells import CellConfigured, Zone
from schemas.changes import ZoneConfigured
from schemas.codec import Decision
from schemas.commands import Command
from schemas.decisions import NodeMoved, ZoneAccepted
from schemas.fleet import NodeOnline
from schemas.installed import SOLVES
from schemas.registry import runners_of
from schemas.solves import SolveFinished, SolveRequested


class VirtualRunner(Protocol):
    """Stands in for the runners of one name on all nodes of a cell."""

    def __init__(self, cell: str, pace: float) -> None:
        """Make the runner; `pace` is the speed of every node over the speed that the zones plan with."""

    def carry_out(self, command: Command, time_s: float, until_s: float = math.inf) -> Moments:
        """Yield the reports of a node because of a command, with their times, in the order of the times.

        Each report is computed when the one before it is delivered. So the reports of a service may be
        endless, until a later command stops it. None in place of a report is a time at which the runner
        checks for such a command before it computes the next report.

        Args:
            command: Command for a runner of this name.
            time_s: Time of the command; no report is earlier.
            until_s: Time of the node's loss, after which it sends no reports.
        """


@dataclass(frozen=True)
class VirtualNode:
    """A node that is present."""

    cell: str
    node: str
    zone: str
    """Zone that it serves."""
    base_model: str
    runners: tuple[str, ...]
    """Names of runners; empty where its zone sends no commands: then it has no executor and sends nothing."""

    def online(self) -> NodeOnline:
        """Return the event of its start."""
        return NodeOnline(cell=self.cell, node=self.node, base_model=self.base_model, runners=self.runners)


Presence = Callable[[str, float], float | None]
"""Function of node and time (s) to the end of the node's presence (s); None if it is not present."""


def always_present(_node: str, _time_s: float) -> float | None:
    """Return the presence of nodes that are never lost."""
    return math.inf


class VirtualFleet:
    """Queues the events that nodes and solvers send because of decisions."""

    def __init__(
        self,
        cell: CellConfigured,
        pace: float,
        queue: EventQueue,
        until_s: Presence = always_present,
        solve_s: float = 0.0,
        runners: Mapping[str, VirtualRunner] = MappingProxyType({}),
    ) -> None:
        """Describe a fleet.

        Args:
            cell: Configuration of the cell.
            pace: Speed of the nodes, as in `VirtualRunner`.
            queue: Queue for the events.
            until_s: Presence of the nodes.
            solve_s: Virtual time of a solve, regardless of its real time.
            runners: Runners by name, in place of those of the policies.
        """
        self._cell = cell.cell
        self._zones = {zone.id: zone for zone in cell.zones}
        self.nodes = {node.id: self._node(node.id, zone) for zone in cell.zones for node in zone.nodes}
        self._pace = pace
        self._runners = dict(runners)
        """Runners by name, made when they are first needed."""
        self._queue = queue
        self._until_s = until_s
        self._solve_s = solve_s
        answers = dict.fromkeys(one for tools in installed_tools() for one in tools.virtual_answers)
        self._answers = {one.decision: one.function for one in answers}
        self.answers = frozenset(event for one in answers for event in one.events)
        """Types of events with which simulated services answer."""

    def react(self, time_s: float, event: Event, decisions: Iterable[Decision]) -> None:
        """Queue the events that follow from the decisions about an event at `time_s`."""
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
                self._queue.add_all(EventRank.REPORT, runner.carry_out(outcome, time_s, until_s))
            case NodeMoved(to_zone=None):
                self.nodes.pop(outcome.node, None)
            case NodeMoved(to_zone=str() as zone):
                self._start(time_s, self._node(outcome.node, self._zones[zone]))
            case SolveRequested():
                self._queue.add(time_s + self._solve_s, EventRank.ANSWER, _solved(decision.cell, outcome))
                # A simulation runs without garbage collection, and a solver's model is a large cycle.
                gc.collect(0)
            case _ if type(outcome) in self._answers:
                answers = resolve_name(self._answers[type(outcome)])(decision, time_s)
                self._queue.add_all(EventRank.SET_UP, answers)

    def _configure(self, time_s: float, zone: Zone) -> None:
        """Restart the nodes of a zone whose base model or runners have changed."""
        self._zones[zone.id] = zone
        for node in [node for node in self.nodes.values() if node.zone == zone.id]:
            if node != (changed := self._node(node.node, zone)):
                self._start(time_s, changed)

    def _start(self, time_s: float, node: VirtualNode) -> None:
        """Start a node's executor with the base model and runners of its zone."""
        self.nodes[node.node] = node
        if node.runners and self._until_s(node.node, time_s) is not None:
            self._queue.add(time_s, EventRank.REPORT, node.online())

    def _runner(self, name: str) -> VirtualRunner:
        if name not in self._runners:
            (reference,) = {
                tools.virtual_runners[name] for tools in installed_tools() if name in tools.virtual_runners
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
