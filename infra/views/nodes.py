"""The present state of a cell's nodes, folded from its log."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.base import Event, Outcome
from schemas.cells import CellConfigured, Zone
from schemas.changes import NodeRegistered, ZoneConfigured
from schemas.decisions import NodeMoved, NodeStatusChanged
from schemas.fleet import NodeOnline

NOT_SEEN = "not seen yet"


@dataclass
class Node:
    """A node as it stands."""

    node: str
    zone: str = ""
    gpu_type: str = ""
    tariff: str = ""
    status: str = NOT_SEEN


@dataclass
class Nodes:
    """Takes events and decisions, each in their order."""

    by_id: dict[str, Node] = field(default_factory=dict)
    losses: int = 0
    """How often a node was lost."""

    def take_event(self, event: Event) -> None:
        """Take a ledger event."""
        match event:
            case CellConfigured():
                self._configure(event.zones)
            case ZoneConfigured():
                self._configure((event.zone,))
            case NodeRegistered():
                node = self._node(event.node)
                node.gpu_type, node.tariff = node.gpu_type or event.gpu_type, node.tariff or event.tariff
            case NodeOnline() if event.node in self.by_id:
                node = self.by_id[event.node]
                # Of a node that was lost, it is a decision that says when it is back.
                node.status = "up" if node.status == NOT_SEEN else node.status

    def take_decision(self, outcome: Outcome) -> None:
        """Take a decision."""
        match outcome:
            case NodeStatusChanged():
                self._node(outcome.node).status = outcome.status
                self.losses += outcome.reason in ("offline", "silent")
            case NodeMoved(to_zone=None):
                self.by_id.pop(outcome.node, None)
            case NodeMoved(to_zone=str() as zone):
                self._node(outcome.node).zone = zone

    def _configure(self, zones: Iterable[Zone]) -> None:
        for zone in zones:
            for configured in zone.nodes:
                node = self._node(configured.id)
                if not node.zone:  # of a known node, decisions say where it is
                    node.zone = zone.id
                    node.gpu_type, node.tariff = configured.gpu_type, configured.tariff

    def _node(self, node: str) -> Node:
        return self.by_id.setdefault(node, Node(node))
