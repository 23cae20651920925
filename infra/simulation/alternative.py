"""A cell's configuration with a few things changed: other nodes, another policy, other prices."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from pydantic import ValidationError

from infra.errors import CommandError
from schemas.cells import CellConfigured, Node, Zone
from schemas.codec import describe

_MOST_NODES = 10_000
_ADDITION = re.compile(r"(?P<zone>[^:=]+):(?P<gpu_type>[^:=]+)=(?P<nodes>[1-9][0-9]{0,4})")


@dataclass(frozen=True)
class NodeAddition:
    """So many more nodes of a type in a zone, under the tariff of its first node of that type."""

    zone: str
    gpu_type: str
    nodes: int

    @classmethod
    def parse(cls, text: str) -> "NodeAddition":
        """Read `zone:gpu_type=N`.

        Raises:
            CommandError: it reads otherwise.
        """
        found = _ADDITION.fullmatch(text)
        if found is None or int(found["nodes"]) > _MOST_NODES:
            raise CommandError(
                f"--add-nodes {text}: expected ZONE:GPU_TYPE=N with N from 1 to {_MOST_NODES}, "
                "such as llama-7b:A100=4"
            )
        return cls(found["zone"], found["gpu_type"], int(found["nodes"]))


def _as_they_are(cell: CellConfigured, source: str) -> CellConfigured:  # noqa: ARG001
    return cell


@dataclass(frozen=True)
class Alternative:
    """What is to be changed; by default nothing."""

    policies: Callable[[CellConfigured, str], CellConfigured] = _as_they_are
    """Changes the policies of zones: the cell, and what it was read from, to the cell."""
    scale_nodes: float = 1.0
    """How many times as many nodes of each type and tariff there are."""
    additions: tuple[NodeAddition, ...] = ()
    """Made after scaling."""

    def of(self, cell: CellConfigured, source: str = "the cell") -> CellConfigured:
        """The configuration with the changes made.

        Args:
            source: what it was read from, for messages.

        Raises:
            CommandError: they cannot be made, or the result is no valid configuration.
        """
        cell = self.policies(cell, source)
        taken = {node.id for zone in cell.zones for node in zone.nodes}
        names = (f"added-{number}" for number in count(1) if f"added-{number}" not in taken)
        zones = {zone.id: self._scaled(zone, names) for zone in cell.zones}
        for addition in self.additions:
            if addition.zone not in zones:
                raise CommandError(f"--add-nodes: cell {cell.cell} has no zone {addition.zone}")
            zones[addition.zone] = _with_more(zones[addition.zone], addition, names)
        changed = cell.model_copy(update={"zones": tuple(zones.values())})
        try:
            # Copies are not validated, and the bounds on a cell's size are part of what is.
            return CellConfigured.model_validate_json(changed.model_dump_json())
        except ValidationError as error:
            raise CommandError(f"the changed cell is invalid: {describe(error)}") from None

    def without_effect(self, cell: CellConfigured) -> list[str]:
        """A line if there are nodes that are scaled to as many as they are."""
        if self.scale_nodes == 1:
            return []
        kept = [
            f"{len(nodes)} of type {gpu_type} in zone {zone.id}"
            for zone in cell.zones
            for (gpu_type, _), nodes in _alike(zone).items()
            if self._wanted(nodes) == len(nodes)
        ]
        line = (
            f"--scale-nodes {self.scale_nodes:g} is rounded to as many nodes as there are: {', '.join(kept)}"
        )
        return [line] if kept else []

    def _wanted(self, nodes: list[Node]) -> int:
        return int(len(nodes) * self.scale_nodes + 0.5)

    def _scaled(self, zone: Zone, names: Iterator[str]) -> Zone:
        alike = _alike(zone)
        wanted = {kind: self._wanted(nodes) for kind, nodes in alike.items()}
        kept = {node.id for kind, nodes in alike.items() for node in nodes[: wanted[kind]]}
        nodes = [node for node in zone.nodes if node.id in kept]
        for kind, held in alike.items():
            nodes += [_like(held[0], next(names)) for _ in range(wanted[kind] - len(held))]
        if not nodes:
            raise CommandError(f"--scale-nodes {self.scale_nodes:g} leaves zone {zone.id} without any node")
        return zone.model_copy(update={"nodes": tuple(nodes)})


def _alike(zone: Zone) -> dict[tuple[str, str], list[Node]]:
    """The nodes by GPU type and tariff."""
    alike: dict[tuple[str, str], list[Node]] = {}
    for node in zone.nodes:
        alike.setdefault((node.gpu_type, node.tariff), []).append(node)
    return alike


def _with_more(zone: Zone, addition: NodeAddition, names: Iterator[str]) -> Zone:
    if addition.gpu_type not in {gpu.name for gpu in zone.gpu_types}:
        known = ", ".join(gpu.name for gpu in zone.gpu_types)
        raise CommandError(f"--add-nodes: zone {zone.id} has no gpu type {addition.gpu_type}, it has {known}")
    alike = [node for node in zone.nodes if node.gpu_type == addition.gpu_type]
    model = (alike or zone.nodes)[0].model_copy(update={"gpu_type": addition.gpu_type})
    more = tuple(_like(model, next(names)) for _ in range(addition.nodes))
    return zone.model_copy(update={"nodes": zone.nodes + more})


def _like(node: Node, id: str) -> Node:
    return node.model_copy(update={"id": id})


def check_comparable(own: CellConfigured, other: CellConfigured) -> None:
    """Return if the jobs of a ledger mean the same in another configuration.

    Raises:
        CommandError: its slots are others.
    """
    for name in ("epoch_s", "slot_s"):
        before, after = getattr(own, name), getattr(other, name)
        if before != after:
            raise CommandError(
                f"cell {own.cell}: {name} is {after} in the file of cells and {before} in the ledger, and "
                "slots could not be compared: make it the ledger's"
            )


def losses(own: CellConfigured, other: CellConfigured) -> list[str]:
    """A line for each kind of thing that the ledger speaks of and the other configuration lacks."""
    lines = []
    for what, names, consequence in (
        ("zones", _missing(_zones(own), _zones(other)), "jobs for them are rejected (unknown_zone)"),
        ("nodes", _missing(_nodes(own), _nodes(other)), "their events are left out"),
        ("vendors", _missing(own.vendors, other.vendors), "their quotes are ignored (unknown_vendor)"),
    ):
        if names:
            lines.append(f"not in the changed cell: {what} {', '.join(names)}; {consequence}")
    return lines


def _missing(held: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    return sorted(set(held) - set(others))


def _zones(cell: CellConfigured) -> tuple[str, ...]:
    return tuple(zone.id for zone in cell.zones)


def _nodes(cell: CellConfigured) -> tuple[str, ...]:
    return tuple(node.id for zone in cell.zones for node in zone.nodes)
