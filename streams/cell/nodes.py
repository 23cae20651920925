"""The nodes of a cell: the zone of each, whether it is up, and whether it may be planned on.

A node of the first configuration is assumed to be up until it leaves, announces that it is unfit for its
zone, or falls silent after a first report; a node that joins later is awaited. A node is unfit without a
runner that the zone's policy commands, or, where the zone's jobs share a base model, with another one. A zone
whose policy has no commands gets no reports of its nodes: they count as up.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from schemas.base import Outcome
from schemas.cells import Zone
from schemas.decisions import EventIgnored, NodeStatus, NodeStatusChanged, NodeStatusReason
from schemas.fleet import CommandRefused, FleetEvent, NodeOffline, NodeOnline, NodeSilent, SignOfLife
from schemas.loans import LoanStatus
from schemas.registry import runners_of
from streams.cell.layout import Layout
from streams.cell.node_record import (
    LEAVING,
    LeavingReason,
    Loan,
    NodeEvent,
    NodeRecord,
    PlannedReclaim,
)
from streams.cell.states import Stateful

T = TypeVar("T")


@dataclass(frozen=True)
class NodeChange:
    """Change of a node of a zone."""

    node: str
    status: Literal["up", "down", "restarted", "cordoned", "leaving", "open"]
    """The change; `ZoneContext.nodes` has the present state.

    `restarted`: its executor has started again, and continues the `runs`; how long they took is unknown.
    `cordoned`: nothing new may be planned on it. `leaving`: in addition, plans that fit elsewhere are moved
    away from it. `open`: both no longer hold."""
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


RETIRED = Departure(None, "retired")


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

    _records: dict[str, NodeRecord]
    _numbered: int
    """Number of changes of a membership by now, from which places in orders are set."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._records, self._numbered = dict.fromkeys(layout.owner_of, NodeRecord()), 0
        self.leaving: dict[str, Departure] = {}
        """Nodes that are to leave, in the order in which that was decided. Like `loans`, it follows from the
        records."""
        self.loans: dict[str, Loan] = {}
        """Loans by server, in the order of the loans. Nodes that operators lend are not on loan."""
        self._touched: dict[str, tuple[NodeRecord, NodeRecord]] = {}
        """Servers on loan with decisions of the present event: their records before it, and the last ones
        with the loan."""

    def restore(self, state: Sequence[Any]) -> None:
        super().restore(state)
        records = self._records.items()
        lent = {node: record.serves for node, record in records if record.serves is not None}
        self.layout = Layout(self.layout.owned, lent)
        self.leaving, self.loans = {}, {}
        for node, record in sorted(records, key=lambda each: each[1].leaves or 0):
            _keep(self.leaving, node, self._departure(node, record))
        loans = {node: record.loan for node, record in records if record.loan is not None}
        self.loans.update(sorted(loans.items(), key=lambda each: each[1].number))

    @property
    def watched(self) -> Collection[str]:
        """Nodes that have reported and are up, so that their silence counts."""
        return [node for node, record in self._records.items() if record.connection == "watched"]

    def record(self, node: str) -> NodeRecord:
        """Return the record of a node of the cell."""
        return self._records[node]

    def zone_of(self, node: str) -> str | None:
        """Return the zone that a node serves; None for a node of another cell."""
        return self.layout.zone_of.get(node)

    def status_of(self, node: str) -> NodeStatus:
        return self._records[node].status

    def is_open(self, node: str, although_leaving: bool = False) -> bool:
        """Return whether anything new may be planned on a node.

        Args:
            although_leaving: whether it may be planned on though it is to leave.
        """
        record = self._records[node]
        stays = although_leaving or record.leaves is None
        return stays and record.scheduling == "open" and not record.is_down

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

    def awaits(self, sign: SignOfLife) -> bool:
        """Return whether a sign of life changes the state of a node."""
        id = self.zone_of(sign.node)
        if id is None or self._records[sign.node].connection == "watched":
            return False
        zone = self.layout.zones[id]
        return commands_nodes(zone) and _unfit(sign, zone) is None

    def apply(self, event: FleetEvent) -> list[Step]:
        """Return the decisions on an event about a node of the cell, and the changes for its zone, in
        order."""
        node = event.node
        zone = self.layout.zones[self.layout.zone_of[node]]
        if not commands_nodes(zone):
            return []
        if isinstance(event, SignOfLife) and (unfit := _unfit(event, zone)) is not None:
            return [unfit, *self._connect(node, "awaited", "offline")]
        match event:
            case NodeOffline():
                return self._connect(node, "lost", "offline")
            case NodeSilent():
                return self._connect(node, "lost", "silent")
            case CommandRefused():
                return self._connect(node, "refused", "online")
            case NodeOnline():
                restarted = NodeChange(node, "restarted", runs=event.runs)
                return [restarted, *self._connect(node, "announced", "online")]
        return self._connect(node, "announced" if isinstance(event, SignOfLife) else "reported", "online")

    def cordon(self, node: str) -> list[Step]:
        self._change(node, "cordoned")
        return [self.described(node, "cordoned"), NodeChange(node, "cordoned")]

    def uncordon(self, node: str) -> list[Step]:
        """Uncordon a node, which is open again unless it is leaving."""
        self._change(node, "uncordoned")
        uncordoned = self.described(node, "uncordoned")
        return [uncordoned] if node in self.leaving else [uncordoned, NodeChange(node, "open")]

    def send_off(self, node: str, reason: LeavingReason, to_zone: str | None = None) -> list[Step]:
        """Mark a node as leaving.

        Args:
            to_zone: zone that it goes to; None where it leaves the cell.
        """
        self._change(node, reason, lent_to=to_zone if reason == "lent" else None)
        return self._leaving_steps(node)

    def reclaim(self, server: str, reclaim: PlannedReclaim, time_s: float) -> list[Step]:
        """Mark a server on loan as leaving, which its owner reclaims."""
        self._change(server, "reclaimed", loan=replace(self.loans[server], since_s=time_s, reclaim=reclaim))
        return self._leaving_steps(server)

    def begin_loan(self, server: str, borrower: str, notice_s: float, time_s: float) -> None:
        """Lend a server that its owner can spare. Its layout is to be set next."""
        owner = self.layout.owner_of[server]
        self._change(server, "loaned", loan=Loan(owner, borrower, time_s, notice_s, self._numbered))

    def date_loan(self, server: str, time_s: float) -> None:
        """Set the start of the present status of a loan."""
        self.loans[server] = loan = replace(self.loans[server], since_s=time_s)
        self._records[server] = replace(self._records[server], loan=loan)

    def keep(self, node: str, reason: Literal["returned", "registered"]) -> list[Step]:
        """Keep a node that was to leave: in its zone, or on its way back if it is reclaimed."""
        self._change(node, "kept")
        if node in self.leaving:
            return self._leaving_steps(node)
        steps: list[Step] = [self.described(node, reason), NodeChange(node, "open")]
        if self._records[node].scheduling == "cordoned":
            steps.append(NodeChange(node, "cordoned"))
        return steps

    def leave(self, node: str) -> None:
        """End the departure of a node, which moves now: its layout is to be set next."""
        self._change(node, "moved")

    def touched_loans(self) -> dict[str, tuple[NodeRecord, NodeRecord]]:
        """Return the servers on loan with decisions since the last call: their records before, and the last
        ones with the loan."""
        touched, self._touched = self._touched, {}
        return touched

    def arrange(self, layout: Layout) -> None:
        """Set the layout. Zones are arranged afterwards, so the owner of a returned server counts it as its
        own."""
        before, self.layout = self.layout, layout
        for node in before.zone_of.keys() - layout.zone_of.keys():
            del self._records[node]
        for node in layout.zone_of:
            self._records.setdefault(node, NodeRecord())

    def assume_up(self, node: str, reason: LeavingReason) -> list[Step]:
        """Count a node as up that has come to a zone without reports of nodes."""
        return self._connect(node, "assumed", reason)[:1]  # the zone assumes it

    def await_announcement(self, node: str) -> list[Step]:
        """Count a node as down until it announces that it is fit for the zone that it serves now."""
        return self._connect(node, "awaited", "awaited")

    def initial_changes(self, node: str) -> list[Step]:
        """Return the changes of a node that has come to a zone, which assumes new nodes to be up and open."""
        record = self._records[node]
        steps: list[Step] = []
        if record.is_down:
            steps.append(NodeChange(node, "down"))
        if record.scheduling == "cordoned":
            steps.append(NodeChange(node, "cordoned"))
        return steps

    def described(self, node: str, reason: NodeStatusReason) -> NodeStatusChanged:
        """Return the present status of a node as a decision. Loans follow in the order of these decisions."""
        self._touch(node, self._records[node])
        zone = self.layout.zone_of[node]
        return NodeStatusChanged(zone=zone, node=node, status=self.status_of(node), reason=reason)

    def _leaving_steps(self, node: str) -> list[Step]:
        return [self.described(node, self.leaving[node].reason), NodeChange(node, "leaving")]

    def _connect(self, node: str, event: NodeEvent, reason: NodeStatusReason) -> list[Step]:
        """Change the connection to a node; return the steps if it comes up or goes down by that."""
        before, after = self._change(node, event)
        if before.is_down == after.is_down:
            return []
        return [self.described(node, reason), NodeChange(node, "down" if after.is_down else "up")]

    def _change(
        self, node: str, event: NodeEvent, lent_to: str | None = None, loan: Loan | None = None
    ) -> tuple[NodeRecord, NodeRecord]:
        """Apply an event to the record of a node; return the record before and after it."""
        before = self._records[node]
        self._records[node] = after = before.after(event, self._numbered, lent_to, loan)
        if after.membership != before.membership:
            self._numbered += 1
            self._touch(node, before)
            _keep(self.leaving, node, self._departure(node, after))
            _keep(self.loans, node, after.loan)
        return before, after

    def _departure(self, node: str, record: NodeRecord) -> Departure | None:
        reason = LEAVING.get(record.membership)
        if reason is None:
            return None
        to_zone = {"lent": record.lent_to, "returned": self.layout.owner_of[node], "retired": None}[reason]
        return Departure(to_zone, reason)

    def _touch(self, node: str, record: NodeRecord) -> None:
        if record.loan is not None:
            before, _ = self._touched.get(node, (record, record))
            self._touched[node] = before, record


def _keep(index: dict[str, T], node: str, value: T | None) -> None:
    if value is None:
        index.pop(node, None)
    else:
        index[node] = value


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
