"""Changes of a cell's configuration: other nodes, another policy, other prices."""

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
    """Nodes to add in a zone, under the tariff of its first node of their type."""

    zone: str
    gpu_type: str
    nodes: int

    @classmethod
    def parse(cls, text: str) -> "NodeAddition":
        """Read `zone:gpu_type=N`.

        Raises:
            CommandError: the text has another form.
        """
        found = _ADDITION.fullmatch(text)
        if found is None or int(found["nodes"]) > _MOST_NODES:
            raise CommandError(
                f"--add-nodes {text}: expected ZONE:GPU_TYPE=N with N from 1 to {_MOST_NODES}, "
                "such as llama-7b:A100=4"
            )
        return cls(found["zone"], found["gpu_type"], int(found["nodes"]))


def _unchanged(cell: CellConfigured, source: str) -> CellConfigured:  # noqa: ARG001
    return cell


@dataclass(frozen=True)
class Alternative:
    """Changes to make; by default none."""

    policies: Callable[[CellConfigured, str], CellConfigured] = _unchanged
    """Function that changes the policies of zones: of the cell and its source, to the changed cell."""
    scale_nodes: float = 1.0
    """Factor for the number of nodes of each type and tariff."""
    additions: tuple[NodeAddition, ...] = ()
    """Nodes to add after scaling."""

    def of(self, cell: CellConfigured, source: str = "the cell") -> CellConfigured:
        """Return the changed configuration.

        Args:
            cell: Configuration to change.
            source: Source of the configuration, for messages.

        Raises:
            CommandError: a change is impossible, or the result is invalid.
        """
        cell = self.policies(cell, source)
        used = {node.id for zone in cell.zones for node in zone.nodes}
        names = (f"added-{number}" for number in count(1) if f"added-{number}" not in used)
        zones = {zone.id: self._scaled(zone, names) for zone in cell.zones}
        for addition in self.additions:
            if addition.zone not in zones:
                raise CommandError(f"--add-nodes: cell {cell.cell} has no zone {addition.zone}")
            zones[addition.zone] = _with_more(zones[addition.zone], addition, names)
        changed = cell.model_copy(update={"zones": tuple(zones.values())})
        try:
            # Copies are not validated, and validation checks the bounds on a cell's size.
            return CellConfigured.model_validate_json(changed.model_dump_json())
        except ValidationError as error:
            raise CommandError(f"the changed cell is invalid: {describe(error)}") from None

    def without_effect(self, cell: CellConfigured) -> list[str]:
        """Return a line about nodes whose number is unchanged after rounding, if there are any."""
        if self.scale_nodes == 1:
            return []
        kept = [
            f"{len(nodes)} of type {gpu_type} in zone {zone.id}"
            for zone in cell.zones
            for (gpu_type, _), nodes in _alike(zone).items()
            if self._count(nodes) == len(nodes)
        ]
        line = (
            f"--scale-nodes {self.scale_nodes:g} is rounded to as many nodes as there are: {', '.join(kept)}"
        )
        return [line] if kept else []

    def _count(self, nodes: list[Node]) -> int:
        return int(len(nodes) * self.scale_nodes + 0.5)

    def _scaled(self, zone: Zone, names: Iterator[str]) -> Zone:
        alike = _alike(zone)
        counts = {kind: self._count(nodes) for kind, nodes in alike.items()}
        kept = {node.id for kind, nodes in alike.items() for node in nodes[: counts[kind]]}
        nodes = [node for node in zone.nodes if node.id in kept]
        for kind, own in alike.items():
            nodes += [_like(own[0], next(names)) for _ in range(counts[kind] - len(own))]
        if not nodes:
            raise CommandError(f"--scale-nodes {self.scale_nodes:g} leaves zone {zone.id} without any node")
        return zone.model_copy(update={"nodes": tuple(nodes)})


def _alike(zone: Zone) -> dict[tuple[str, str], list[Node]]:
    """Return the nodes by GPU type and tariff."""
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
    """Check that the slots of a ledger and of another configuration are the same.

    Raises:
        CommandError: they differ.
    """
    for name in ("epoch_s", "slot_s"):
        before, after = getattr(own, name), getattr(other, name)
        if before != after:
            raise CommandError(
                f"cell {own.cell}: {name} is {after} in the file of cells and {before} in the ledger, and "
                "slots could not be compared: make it the ledger's"
            )


def losses(own: CellConfigured, other: CellConfigured) -> list[str]:
    """Return a line each for the zones, nodes and vendors that the other configuration lacks."""
    lines = []
    for kind, names, consequence in (
        ("zones", _missing(_zones(own), _zones(other)), "jobs for them are rejected (unknown_zone)"),
        ("nodes", _missing(_nodes(own), _nodes(other)), "their events are left out"),
        ("vendors", _missing(own.vendors, other.vendors), "their quotes are ignored (unknown_vendor)"),
    ):
        if names:
            lines.append(f"not in the changed cell: {kind} {', '.join(names)}; {consequence}")
    return lines


def _missing(own: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    return sorted(set(own) - set(others))


def _zones(cell: CellConfigured) -> tuple[str, ...]:
    return tuple(zone.id for zone in cell.zones)


def _nodes(cell: CellConfigured) -> tuple[str, ...]:
    return tuple(node.id for zone in cell.zones for node in zone.nodes)
