"""The present state of a cell's nodes, folded from its log."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from schemas.cells import CellConfigured, Zone
from schemas.cells import Node as ConfiguredNode
from schemas.changes import NodeRegistered, ZoneConfigured
from schemas.codec import Decision, Envelope
from schemas.decisions import NodeMoved, NodeStatus, NodeStatusChanged, ZoneAccepted
from schemas.fleet import SignOfLife

_SPEEDS_KEPT = 100
"""Number of the latest speeds of a node in a zone that are kept."""
_LEFT_KEPT = 1_000
"""Number of the latest nodes that left, and places of lent ones, whose speeds are kept."""
UNSEEN: Literal["unseen"] = "unseen"
"""Status of a node before its first report."""


@dataclass
class NodeState:
    """Present state of a node."""

    node: str
    owner: str
    """Zone that owns it."""
    zone: str
    """Zone that it serves: another one while it is lent."""
    gpu_type: str
    tariff: str
    status: NodeStatus | Literal["unseen"] = UNSEEN
    is_cordoned: bool = False
    """Whether it is cordoned, also while `status` is another."""


@dataclass
class Nodes:
    """Folds events and decisions, as the cell has accepted them. A decision is folded after its event."""

    by_id: dict[str, NodeState] = field(default_factory=dict)
    losses: int = 0
    """Number of losses of nodes."""
    zones: dict[str, Zone] = field(default_factory=dict)
    """Present configurations of the zones."""
    _changes: dict[str, NodeRegistered | ZoneConfigured] = field(default_factory=dict)
    """Changes by event id, from the last one with a decision on; rejected ones included."""
    _speeds: dict[tuple[str, str], deque[tuple[float, float]]] = field(default_factory=dict)
    """Start and samples per second of the latest speeds, by node and zone."""
    _left: dict[tuple[str, str], None] = field(default_factory=dict)
    """Keys of `_speeds` whose node has left that zone, in the order of leaving."""
    _present_at_first: int = 0
    """Number of nodes before the first tick."""
    _left_less_joined_s: float = 0.0
    """Sum of the times at which nodes left, less the times at which others joined later."""

    def fold_event(self, envelope: Envelope) -> None:
        """Fold a ledger event."""
        match event := envelope.event:
            case CellConfigured() if not self.zones:  # a cell ignores a second one
                self.configure(event)
            case NodeRegistered() | ZoneConfigured():
                self._changes.setdefault(envelope.id, event)
            case SignOfLife() if event.node in self.by_id:
                seen = self.by_id[event.node]
                # The return of a lost node is a decision.
                seen.status = "up" if seen.status == UNSEEN else seen.status

    def configure(self, first: CellConfigured) -> None:
        """Set the nodes and zones of the first configuration."""
        self.zones = {zone.id: zone for zone in first.zones}
        for zone in first.zones:
            for node in zone.nodes:
                self._join(zone.id, node, None)

    def fold_decision(self, decision: Decision) -> None:
        change, time_s = self._changes.get(decision.cause), decision.time_s
        if change is not None:
            while next(iter(self._changes)) != decision.cause:
                del self._changes[next(iter(self._changes))]
        match decision.outcome, change:
            case ZoneAccepted(), ZoneConfigured() as change:
                self._configure(change.zone, time_s)
            case NodeMoved(from_zone=None) as joined, NodeRegistered() as change:
                node = ConfiguredNode(id=joined.node, gpu_type=change.gpu_type, tariff=change.tariff)
                self._join(change.zone, node, time_s)
            case NodeMoved(from_zone=None) as joined, ZoneConfigured() as change:
                for node in change.zone.nodes:
                    if node.id == joined.node:
                        self._join(change.zone.id, node, time_s)
            case (NodeMoved() | NodeStatusChanged()) as outcome, _ if outcome.node in self.by_id:
                self._change(self.by_id[outcome.node], outcome, time_s)

    def node_s(self, first_s: float, now_s: float) -> float:
        """Return the sum of the nodes' times in the cell (s), up or not, from its first tick until now."""
        return len(self.by_id) * now_s - self._present_at_first * first_s + self._left_less_joined_s

    @property
    def has_speeds(self) -> bool:
        """Whether the configuration has the speed of all jobs: not where jobs have models of their own."""
        return all(zone.policy.shares_base_model for zone in self.zones.values())

    def gpus(self, zone: str) -> int:
        """Return the number of GPUs of the nodes that serve a zone."""
        counts = {gpu.name: gpu.gpus for gpu in self.zones[zone].gpu_types}
        return sum(counts[node.gpu_type] for node in self.by_id.values() if node.zone == zone)

    def samples_per_s(self, node: str, zone: str, time_s: float) -> float | None:
        """Return a node's speed in a zone, as configured at that time; None if it did not serve the zone."""
        speeds = reversed(self._speeds.get((node, zone), ()))
        return next((speed for since_s, speed in speeds if since_s <= time_s), None)

    def _join(self, zone: str, node: ConfiguredNode, time_s: float | None) -> None:
        self.by_id[node.id] = NodeState(node.id, zone, zone, node.gpu_type, node.tariff)
        self._count(1, time_s)
        self._note_speeds([self.by_id[node.id]], time_s)

    def _change(self, node: NodeState, outcome: NodeMoved | NodeStatusChanged, time_s: float | None) -> None:
        match outcome:
            case NodeStatusChanged():
                node.status = outcome.status
                self.losses += outcome.reason in ("offline", "silent")
                if outcome.reason in ("cordoned", "uncordoned"):
                    node.is_cordoned = outcome.reason == "cordoned"
            case NodeMoved(to_zone=None):
                self._leave(node)
                del self.by_id[node.node]
                self._count(-1, time_s)
            case NodeMoved(to_zone=str() as zone):
                self._leave(node)
                node.zone = zone
                self._note_speeds([node], time_s)
                if node.status == "leaving":  # other states have no new decision
                    node.status = "cordoned" if node.is_cordoned else "up"

    def _configure(self, zone: Zone, time_s: float | None) -> None:
        self.zones[zone.id] = zone
        for configured in zone.nodes:
            node = self.by_id.get(configured.id)
            if node is not None:
                node.gpu_type, node.tariff = configured.gpu_type, configured.tariff
        self._note_speeds(self.by_id.values(), time_s)

    def _note_speeds(self, nodes: Iterable[NodeState], time_s: float | None) -> None:
        for node in nodes:
            types = self.zones[node.zone].gpu_types
            speed = next(gpu.samples_per_s for gpu in types if gpu.name == node.gpu_type)
            key = node.node, node.zone
            self._left.pop(key, None)
            speeds = self._speeds.setdefault(key, deque(maxlen=_SPEEDS_KEPT))
            if not speeds or speeds[-1][1] != speed:
                speeds.append((time_s or 0.0, speed))

    def _leave(self, node: NodeState) -> None:
        self._left[node.node, node.zone] = None
        while len(self._left) > _LEFT_KEPT:
            oldest = next(iter(self._left))
            del self._left[oldest], self._speeds[oldest]

    def _count(self, joined: int, time_s: float | None) -> None:
        """Count a node that has joined, or, if `joined` is -1, left."""
        if time_s is None:
            self._present_at_first += joined
        else:
            self._left_less_joined_s -= joined * time_s
