"""The nodes of a cell: the zone of each, whether it is up, and whether it may be planned on.

A node of the first configuration is assumed to be up until it leaves, announces that it is unfit for its
zone, or falls silent after a first report; a node that joins later is awaited. A node is unfit without a
runner that the zone's policy commands, or, where the zone's jobs share a base model, with another one. A zone
whose policy has no commands gets no reports of its nodes: they count as up.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.base import Outcome
from schemas.cells import Zone
from schemas.decisions import EventIgnored, NodeStatus, NodeStatusChanged, NodeStatusReason
from schemas.fleet import CommandRefused, FleetEvent, NodeOffline, NodeOnline, NodeSilent, SignOfLife
from schemas.loans import LoanStatus
from schemas.registry import runners_of
from streams.cell.layout import Layout
from streams.cell.lent_server import Loan
from streams.cell.states import Stateful

LeavingReason = Literal["lent", "returned", "retired"]
Connection = Literal["watched", "down", "awaited"]
"""State of the connection to a node; none for a node that is assumed to be up.

`watched`: it has reported since it was last down, so that its silence counts. `awaited`: it is down until it
announces that it is fit for its zone. Operators cordon and move nodes in any of these states.
"""


@dataclass(frozen=True)
class NodeChange:
    """Change of a node of a zone."""

    node: str
    status: Literal["up", "down", "restarted", "cordoned", "leaving", "open"]
    """The change; `ZoneContext.nodes` has the present state.

    `restarted`: its executor has started again, and continues the `runs`; how long they took is unknown.
    `cordoned`: nothing new may be planned on it. `leaving`: nor may anything stay planned on it that fits
    elsewhere. `open`: both no longer hold."""
    runs: tuple[str, ...] = ()
    """Runs that a restarted node continues: all others there have ended."""


Step = Outcome | NodeChange
"""A decision about a node, or a change for the zone that it serves."""


@dataclass(frozen=True)
class Departure:
    """The destination of a node that leaves as soon as its zone can spare it."""

    to_zone: str | None
    """None where it leaves the cell."""
    reason: LeavingReason


class NodeStates(Protocol):
    """The states of a cell's nodes, as its zones see them."""

    @property
    def leaving(self) -> Mapping[str, Departure]:
        """Nodes of all zones that are to leave, in the order in which that was decided."""

    def is_open(self, node: str, although_leaving: bool = False) -> bool:
        """Return whether anything new may be planned on a node, see `NodePool`."""

    def due_to_leave(self, nodes: Container[str]) -> dict[str, float | None]:
        """Return the due times of those of some nodes that are to leave, see `NodePool`."""


@dataclass(init=False, eq=False)
class NodePool(Stateful):
    """Nodes of one cell. The configuration has the rest of its state."""

    leaving: dict[str, Departure]
    loans: dict[str, Loan]
    """Loans by server, in the order of the loans. Nodes that operators lend are not on loan."""
    _connections: dict[str, Connection]
    _cordoned: dict[str, None]

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.leaving, self.loans = {}, {}
        self._connections, self._cordoned = {}, {}
        self._touched: dict[str, bool] = {}
        """Servers on loan with decisions of the present event, and whether they were leaving before it."""
        self._ended: dict[str, Loan] = {}
        """Loans that have ended with the present event, by server."""

    @property
    def watched(self) -> Collection[str]:
        """Nodes that have reported and are up, so that their silence counts."""
        return [node for node, connection in self._connections.items() if connection == "watched"]

    def zone_of(self, node: str) -> str | None:
        """Return the zone that a node serves; None for a node of another cell."""
        return self.layout.zone_of.get(node)

    def status_of(self, node: str) -> NodeStatus:
        if self._is_down(node):
            return "down"
        return "leaving" if node in self.leaving else "cordoned" if node in self._cordoned else "up"

    def is_open(self, node: str, although_leaving: bool = False) -> bool:
        """Return whether anything new may be planned on a node.

        Args:
            although_leaving: whether it may be planned on though it is to leave.
        """
        is_leaving = node in self.leaving and not although_leaving
        return not (is_leaving or node in self._cordoned or self._is_down(node))

    def due_to_leave(self, nodes: Container[str]) -> dict[str, float | None]:
        """Return when those of some nodes must be free that are to leave, in the order of that decision; None
        for a node that leaves whenever it is free, as all do that no reclaim returns."""
        dues_s = dict[str, float | None]()
        for node, departure in self.leaving.items():
            if node in nodes:
                loan = self.loans.get(node) if departure.reason == "returned" else None
                dues_s[node] = None if loan is None or loan.reclaim is None else loan.reclaim.due_s
        return dues_s

    def loan_status(self, server: str) -> LoanStatus:
        return "draining" if server in self.leaving else "on_loan"

    def is_cordoned(self, node: str) -> bool:
        """Return whether an operator has cordoned a node."""
        return node in self._cordoned

    def is_awaited(self, node: str) -> bool:
        """Return whether a node has still to announce that it is fit for its zone."""
        return self._connections.get(node) == "awaited"

    def awaits(self, sign: SignOfLife) -> bool:
        """Return whether a sign of life changes the state of a node."""
        id = self.zone_of(sign.node)
        if id is None or self._connections.get(sign.node) == "watched":
            return False
        zone = self.layout.zones[id]
        return commands_nodes(zone) and _unfit(sign, zone) is None

    def apply(self, event: FleetEvent) -> list[Step]:
        """Return the decisions on an event about a node of the cell, and the changes for its zone, in
        order."""
        zone = self.layout.zones[self.layout.zone_of[event.node]]
        if not commands_nodes(zone):
            return []
        if isinstance(event, SignOfLife) and (unfit := _unfit(event, zone)) is not None:
            return [unfit, *self._lose(event.node, "awaited", "offline")]
        if isinstance(event, NodeOffline):
            return self._lose(event.node, "down", "offline")
        if isinstance(event, NodeSilent):
            return self._lose(event.node, "down", "silent")
        steps: list[Step] = []
        if isinstance(event, NodeOnline):
            steps.append(NodeChange(event.node, "restarted", runs=event.runs))
        was = self._connections.get(event.node)
        # A node that has gone offline still refuses what was under way to it.
        is_late = was == "down" and isinstance(event, CommandRefused)
        if is_late or (was == "awaited" and not isinstance(event, SignOfLife)):
            return steps
        self._connections[event.node] = "watched"
        if was in ("down", "awaited"):
            steps += [self.described(event.node, "online"), NodeChange(event.node, "up")]
        return steps

    def cordon(self, node: str) -> list[Step]:
        self._cordoned[node] = None
        return [self.described(node, "cordoned"), NodeChange(node, "cordoned")]

    def uncordon(self, node: str) -> list[Step]:
        """Uncordon a node, which is open again unless it is leaving."""
        del self._cordoned[node]
        uncordoned = self.described(node, "uncordoned")
        return [uncordoned] if node in self.leaving else [uncordoned, NodeChange(node, "open")]

    def send_off(self, node: str, departure: Departure) -> list[Step]:
        """Mark a node as leaving."""
        self._touch(node)
        self.leaving[node] = departure
        return [self.described(node, departure.reason), NodeChange(node, "leaving")]

    def keep(self, node: str, reason: Literal["returned", "registered"]) -> list[Step]:
        """Keep a node in its zone that was to leave."""
        self.leave(node)
        steps: list[Step] = [self.described(node, reason), NodeChange(node, "open")]
        if node in self._cordoned:
            steps.append(NodeChange(node, "cordoned"))
        return steps

    def leave(self, node: str) -> None:
        """End the departure of a node, which moves now or stays."""
        self._touch(node)
        del self.leaving[node]

    def touched_loans(self) -> dict[str, bool]:
        """Return the servers on loan with decisions since the last call, and whether they were leaving
        before."""
        touched, self._touched = self._touched, {}
        return touched

    def ended_loans(self) -> dict[str, Loan]:
        """Return the loans that have ended since the last call, by server."""
        ended, self._ended = self._ended, {}
        return ended

    def arrange(self, layout: Layout) -> None:
        """Set the layout, end the loans of servers that are back, and forget the nodes that have left the
        cell. Zones are arranged afterwards, so the owner of a returned server counts it as its own."""
        before, self.layout = self.layout, layout
        for server in [server for server in self.loans if server not in layout.lent]:
            self._ended[server] = self.loans.pop(server)
        for node in before.zone_of.keys() - layout.zone_of.keys():
            self._connections.pop(node, None)
            self._cordoned.pop(node, None)

    def assume_up(self, node: str, reason: LeavingReason) -> list[Step]:
        """Count a node as up that has come to a zone without reports of nodes."""
        was_down = self._is_down(node)
        self._connections.pop(node, None)
        return [self.described(node, reason)] if was_down else []

    def await_announcement(self, node: str) -> list[Step]:
        """Count a node as down until it announces that it is fit for the zone that it serves now."""
        return self._lose(node, "awaited", "awaited")

    def initial_changes(self, node: str) -> list[Step]:
        """Return the changes of a node that has come to a zone, which assumes new nodes to be up and open."""
        steps: list[Step] = []
        if self._is_down(node):
            steps.append(NodeChange(node, "down"))
        if node in self._cordoned:
            steps.append(NodeChange(node, "cordoned"))
        return steps

    def described(self, node: str, reason: NodeStatusReason) -> NodeStatusChanged:
        """Return the present status of a node as a decision. Loans follow in the order of these decisions."""
        self._touch(node)
        zone, status = self.layout.zone_of[node], self.status_of(node)
        return NodeStatusChanged(zone=zone, node=node, status=status, reason=reason)

    def _touch(self, node: str) -> None:
        if node in self.loans:
            self._touched.setdefault(node, node in self.leaving)

    def _is_down(self, node: str) -> bool:
        return self._connections.get(node) in ("down", "awaited")

    def _lose(
        self,
        node: str,
        connection: Literal["down", "awaited"],
        reason: Literal["offline", "silent", "awaited"],
    ) -> list[Step]:
        """Count a node as down. One that is awaited stays so."""
        was_down = self._is_down(node)
        if not self.is_awaited(node):
            self._connections[node] = connection
        return [] if was_down else [self.described(node, reason), NodeChange(node, "down")]


def commands_nodes(zone: Zone) -> bool:
    """Return whether the policy of a zone has commands for its nodes."""
    return bool(runners_of(zone.policy.kind))


def _unfit(sign: SignOfLife, zone: Zone) -> EventIgnored | None:
    """Return why a node is unfit for its zone; None if it is fit."""
    if zone.policy.shares_base_model and sign.base_model != zone.base_model:
        return EventIgnored(
            reason="wrong_base_model",
            facts={
                "node": sign.node,
                "base_model": sign.base_model,
                "zone": zone.id,
                "zone_base_model": zone.base_model,
            },
        )
    missing = runners_of(zone.policy.kind) - set(sign.runners)
    if missing:
        return EventIgnored(
            reason="runner_missing",
            facts={"node": sign.node, "policy": zone.policy.kind, "runners": tuple(sorted(missing))},
        )
    return None
