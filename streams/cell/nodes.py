"""The nodes of a cell: which zone each belongs to, and whether it is there.

A node is taken to be up until it leaves, announces that it is unfit for its zone, or falls silent once it was
heard. It is unfit with another base model than the zone's, or without a runner that its policy commands.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from schemas.base import Outcome
from schemas.cells import Zone
from schemas.decisions import EventIgnored, NodeStatusChanged
from schemas.fleet import FleetEvent, NodeOffline, NodeOnline, NodeSilent
from schemas.registry import runners_of


@dataclass(frozen=True)
class NodeChange:
    """What has become of a node of a zone."""

    node: str
    status: Literal["up", "down", "restarted"]
    """`restarted`: its executor has begun anew, and knows nothing of how long its runs took."""


class NodePool:
    """Of one cell."""

    def __init__(self, zones: Iterable[Zone]) -> None:
        self._zone_of = {node.id: zone for zone in zones for node in zone.nodes}
        self._heard: dict[str, None] = {}
        """Heard since they were last lost."""
        self._down: dict[str, None] = {}
        self._barred: dict[str, None] = {}
        """Unfit for their zone."""

    @property
    def watched(self) -> Collection[str]:
        """Nodes that were heard and are up: their silence is news."""
        return self._heard.keys()

    def zone_of(self, node: str) -> str | None:
        """The zone that a node belongs to; None where the cell has no such node."""
        zone = self._zone_of.get(node)
        return None if zone is None else zone.id

    def awaits(self, node: str) -> bool:
        """Whether a sign of life of a node would be news."""
        return node in self._zone_of and node not in self._heard and node not in self._barred

    def take(self, event: FleetEvent) -> Iterator[Outcome | NodeChange]:
        """What an event about a node of the cell says of the node: what is decided, and what its zone is told
        of, in order."""
        if isinstance(event, NodeOnline):
            unfit = _unfit(event, self._zone_of[event.node])
            if unfit is not None:
                self._barred[event.node] = None
                yield unfit
                yield from self._lose(event.node, "offline", "")
                return
            self._barred.pop(event.node, None)
            yield NodeChange(event.node, "restarted")
        if isinstance(event, NodeOffline):
            yield from self._lose(event.node, "offline", event.reason)
        elif isinstance(event, NodeSilent):
            yield from self._lose(event.node, "silent", "")
        elif event.node not in self._barred:
            self._heard[event.node] = None
            if event.node in self._down:
                del self._down[event.node]
                zone = self._zone_of[event.node].id
                yield NodeStatusChanged(zone=zone, node=event.node, status="up", reason="online")
                yield NodeChange(event.node, "up")

    def state(self) -> dict[str, Any]:
        """Everything that the configuration does not say, of types that msgpack writes."""
        return {"heard": list(self._heard), "down": list(self._down), "barred": list(self._barred)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another pool of the same nodes."""
        self._heard = dict.fromkeys(state["heard"])
        self._down = dict.fromkeys(state["down"])
        self._barred = dict.fromkeys(state["barred"])

    def _lose(
        self, node: str, reason: Literal["offline", "silent"], detail: str
    ) -> Iterator[Outcome | NodeChange]:
        self._heard.pop(node, None)
        if node not in self._down:
            self._down[node] = None
            zone = self._zone_of[node].id
            yield NodeStatusChanged(zone=zone, node=node, status="down", reason=reason, detail=detail)
            yield NodeChange(node, "down")


def _unfit(event: NodeOnline, zone: Zone) -> EventIgnored | None:
    """Why a node is of no use to its zone, if it is."""
    if event.base_model != zone.base_model:
        detail = f"node {event.node} holds {event.base_model}, not {zone.base_model}"
        return EventIgnored(reason="wrong_base_model", detail=detail)
    missing = runners_of(zone.policy.kind) - set(event.runners)
    if missing:
        detail = (
            f"node {event.node} lacks what policy {zone.policy.kind} commands: {', '.join(sorted(missing))}"
        )
        return EventIgnored(reason="runner_missing", detail=detail)
    return None
