"""The nodes of a cell as they stand, folded from its log."""

from dataclasses import dataclass, field

from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.decisions import NodeStatusChanged
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
                self._configure(event)
            case NodeOnline():
                node = self._node(event.node)
                # Of a node that was lost, it is a decision that says when it is back.
                node.status = "up" if node.status == NOT_SEEN else node.status

    def take_decision(self, outcome: Outcome) -> None:
        """Take a decision."""
        if isinstance(outcome, NodeStatusChanged):
            self._node(outcome.node).status = outcome.status
            self.losses += outcome.status == "down"

    def _configure(self, cell: CellConfigured) -> None:
        for zone in cell.zones:
            for configured in zone.nodes:
                node = self._node(configured.id)
                if not node.zone:  # only a cell's first configuration holds
                    node.zone = zone.id
                    node.gpu_type, node.tariff = configured.gpu_type, configured.tariff

    def _node(self, node: str) -> Node:
        return self.by_id.setdefault(node, Node(node))
