"""Changes to a cell as if its file said so: settings of its zones, and how many nodes they have."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any

from pydantic import ValidationError

from infra.errors import CommandError
from schemas.cells import CellConfigured, Node
from schemas.codec import describe

_MOST_NODES = 10_000
_COUNT = re.compile(r"(?P<zone>[^=]+)=(?P<nodes>[1-9][0-9]{0,4})")


@dataclass(frozen=True)
class Setting:
    """Another value for a field of a zone, or of what is in it."""

    path: str
    """The zone's id and the names of fields, with dots between them."""
    value: Any

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """Read `zone.field=value`, with the value in JSON, or plain text where that is none.

        Raises:
            CommandError: it reads otherwise.
        """
        path, equals, value = text.partition("=")
        if not equals or "." not in path:
            raise CommandError(
                f"--set {text}: expected ZONE.FIELD=VALUE, such as training.policy.scheme=fifo"
            )
        try:
            return cls(path, json.loads(value))
        except ValueError:
            return cls(path, value)


@dataclass(frozen=True)
class NodeCount:
    """How many nodes a zone has."""

    zone: str
    nodes: int

    @classmethod
    def parse(cls, text: str) -> "NodeCount":
        """Read `zone=N`.

        Raises:
            CommandError: it reads otherwise.
        """
        found = _COUNT.fullmatch(text)
        if found is None or int(found["nodes"]) > _MOST_NODES:
            raise CommandError(f"--nodes {text}: expected ZONE=N with N from 1 to {_MOST_NODES}")
        return cls(found["zone"], int(found["nodes"]))


@dataclass(frozen=True)
class Edits:
    """By default none."""

    settings: Sequence[Setting] = ()
    counts: Sequence[NodeCount] = ()

    def of(self, cell: CellConfigured) -> CellConfigured:
        """The cell with the changes made.

        Raises:
            CommandError: they cannot be made, or the result is no valid configuration.
        """
        if not self.settings and not self.counts:
            return cell
        for wanted in self.counts:
            cell = _with_nodes(cell, wanted)
        fields = cell.model_dump(mode="json")
        zones = {zone["id"]: zone for zone in fields["zones"]}
        for setting in self.settings:
            _set(zones, setting)
        try:
            return CellConfigured.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            raise CommandError(f"the changed cell is invalid: {describe(error)}") from None


def _with_nodes(cell: CellConfigured, wanted: NodeCount) -> CellConfigured:
    """The zone keeps its first nodes, and gets more like its own in turn."""
    taken = {node.id for zone in cell.zones for node in zone.nodes}
    names = (id for number in count(1) if (id := f"{wanted.zone}-{number:03d}") not in taken)
    zones = {zone.id: zone for zone in cell.zones}
    if wanted.zone not in zones:
        raise CommandError(f"--nodes: cell {cell.cell} has no zone {wanted.zone}, it has {', '.join(zones)}")
    own = zones[wanted.zone].nodes
    more: list[Node] = [
        node.model_copy(update={"id": id})
        for node, id in zip(islice(cycle(own), max(wanted.nodes - len(own), 0)), names, strict=False)
    ]
    nodes = (*own[: wanted.nodes], *more)
    zones[wanted.zone] = zones[wanted.zone].model_copy(update={"nodes": nodes})
    return cell.model_copy(update={"zones": tuple(zones.values())})


def _set(zones: dict[str, dict[str, Any]], setting: Setting) -> None:
    zone = max((id for id in zones if setting.path.startswith(f"{id}.")), key=len, default=None)
    if zone is None:
        raise CommandError(f"--set {setting.path}: there is no such zone, the cell has {', '.join(zones)}")
    *outer, name = setting.path.removeprefix(f"{zone}.").split(".")
    place: Any = zones[zone]
    for part in outer:
        place = place.get(part) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        raise CommandError(f"--set {setting.path}: zone {zone} has no {'.'.join(outer)} with fields")
    place[name] = setting.value
