"""A cell's present configuration, and the nodes that serve another zone than their owner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from schemas.base import Record
from schemas.cells import CellConfigured, Node, Zone
from schemas.changes import NodeRegistered, ZoneConfigured
from schemas.codec import MAX_VALUE_BYTES, facts_of
from schemas.facts import Facts

R = TypeVar("R", bound=Record)


class InvalidLayoutError(Exception):
    """A change would leave an invalid configuration; the facts name the fault."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.facts = facts


@dataclass(frozen=True)
class Layout:
    """Nodes by zone, immutable: a change returns another layout, or raises `InvalidLayoutError`."""

    owned: CellConfigured
    """The configuration with each node in the zone that owns it."""
    lent: Mapping[str, str] = field(default_factory=dict)
    """Zones by node, for nodes that serve another zone than their owner."""

    @cached_property
    def owned_json(self) -> str:
        """The configuration in the form of a snapshot."""
        return self.owned.model_dump_json()

    @cached_property
    def present(self) -> CellConfigured:
        """The configuration with each node in the zone that it serves."""
        return _arranged(self.owned, self.lent, {})

    @cached_property
    def zones(self) -> Mapping[str, Zone]:
        """Zones by id, each with the nodes that serve it."""
        return {zone.id: zone for zone in self.present.zones}

    @cached_property
    def owner_of(self) -> Mapping[str, str]:
        """The zone that owns each node."""
        return {node.id: zone.id for zone in self.owned.zones for node in zone.nodes}

    @cached_property
    def zone_of(self) -> Mapping[str, str]:
        """The zone that each node serves."""
        return {node.id: zone.id for zone in self.present.zones for node in zone.nodes}

    def with_node(self, event: NodeRegistered) -> Self:
        """Return the layout with one node more, in a zone of the cell."""
        node = Node(id=event.node, gpu_type=event.gpu_type, tariff=event.tariff)
        zones = tuple(
            _with(zone, nodes=(*zone.nodes, node)) if zone.id == event.zone else zone
            for zone in self.owned.zones
        )
        return self._valid(_with(self.owned, zones=zones), self.lent)

    def after(self, destinations: Mapping[str, str | None]) -> Self:
        """Return the layout with each of these nodes in another zone, or outside the cell for None."""
        gone = {node for node, zone in destinations.items() if zone is None}
        lent = {
            node: zone
            for node, zone in {**self.lent, **destinations}.items()
            if zone is not None and zone != self.owner_of[node]
        }
        if not gone:
            return self._valid(self.owned, lent)
        zones = tuple(
            _with(zone, nodes=tuple(node for node in zone.nodes if node.id not in gone))
            if any(self.owner_of[node] == zone.id for node in gone)
            else zone
            for zone in self.owned.zones
        )
        return self._valid(_with(self.owned, zones=zones), lent)

    def with_zone(self, event: ZoneConfigured) -> Self:
        """Return the layout with a zone as configured, and its tariffs. Nodes that the zone has to release
        stay."""
        zone, tariffs = event.zone, {tariff.name: tariff for tariff in (*self.owned.tariffs, *event.tariffs)}
        zones = {zone.id: zone for zone in self.owned.zones}
        listed = {node.id for node in zone.nodes}
        given_up = (
            [node for node in zones[zone.id].nodes if node.id not in listed] if zone.id in zones else []
        )
        zones[zone.id] = _with(zone, nodes=(*zone.nodes, *given_up)) if given_up else zone
        owned = _with(self.owned, zones=tuple(zones.values()), tariffs=tuple(tariffs.values()))
        return self._valid(owned, self.lent)

    def _valid(self, owned: CellConfigured, lent: Mapping[str, str]) -> Self:
        layout = type(self)(owned, lent)
        if owned is self.owned:
            # Cached properties are kept, or computed and checked only for the zones that change.
            kept = {"owned_json": self.owned_json, "owner_of": self.owner_of}
            layout.__dict__.update(kept, present=_arranged(owned, lent, self.zones))
        _ = layout.present
        count = len(layout.owned_json)
        if count > MAX_VALUE_BYTES:
            raise InvalidLayoutError(
                {"case": "configuration_too_long", "bytes": count, "most_bytes": MAX_VALUE_BYTES}
            )
        return layout


def _arranged(owned: CellConfigured, lent: Mapping[str, str], known: Mapping[str, Zone]) -> CellConfigured:
    """Return a configuration with each node in the zone that it serves. Zones of `known` are reused where
    their nodes are equal."""
    if not lent:
        return owned
    serving: dict[str, list[Node]] = {zone.id: [] for zone in owned.zones}
    for zone in owned.zones:
        for node in zone.nodes:
            serving[lent.get(node.id, zone.id)].append(node)
    zones: list[Zone] = []
    for zone in owned.zones:
        nodes = tuple(serving[zone.id])
        same = (one for one in (zone, known.get(zone.id)) if one is not None and one.nodes == nodes)
        zones.append(next(same, None) or _with(zone, nodes=nodes))
    return _with(owned, zones=tuple(zones))


def _with(record: R, **changes: Any) -> R:
    """Return a validated copy with other fields.

    Raises:
        InvalidLayoutError: if the copy is invalid.
    """
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    try:
        return type(record)(**{**fields, **changes})
    except ValidationError as error:
        raise InvalidLayoutError(facts_of(error)) from None
