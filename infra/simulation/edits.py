"""Changes to a cell's file: settings of its zones, and their numbers of nodes."""

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
    """Another value for a field of a zone, or of an object in it."""

    path: str
    """Id of the zone and names of fields, with dots between them."""
    value: Any

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """Read `zone.field=value`, with the value in JSON, or as text where it is not valid JSON.

        Raises:
            CommandError: the text has another form.
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
    """Number of nodes of a zone."""

    zone: str
    nodes: int

    @classmethod
    def parse(cls, text: str) -> "NodeCount":
        """Read `zone=N`.

        Raises:
            CommandError: the text has another form.
        """
        found = _COUNT.fullmatch(text)
        if found is None or int(found["nodes"]) > _MOST_NODES:
            raise CommandError(f"--nodes {text}: expected ZONE=N with N from 1 to {_MOST_NODES}")
        return cls(found["zone"], int(found["nodes"]))


@dataclass(frozen=True)
class Edits:
    """Changes to make; by default none."""

    settings: Sequence[Setting] = ()
    counts: Sequence[NodeCount] = ()

    def of(self, cell: CellConfigured) -> CellConfigured:
        """Return the changed cell.

        Raises:
            CommandError: a change is impossible, or the result is invalid.
        """
        if not self.settings and not self.counts:
            return cell
        for target in self.counts:
            cell = _with_nodes(cell, target)
        fields = cell.model_dump(mode="json")
        zones = {zone["id"]: zone for zone in fields["zones"]}
        for setting in self.settings:
            _set(zones, setting)
        try:
            return CellConfigured.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            raise CommandError(f"the changed cell is invalid: {describe(error)}") from None


def _with_nodes(cell: CellConfigured, target: NodeCount) -> CellConfigured:
    """Keep the first nodes of the zone, or add copies of its nodes in turn."""
    used = {node.id for zone in cell.zones for node in zone.nodes}
    names = (id for number in count(1) if (id := f"{target.zone}-{number:03d}") not in used)
    zones = {zone.id: zone for zone in cell.zones}
    if target.zone not in zones:
        raise CommandError(f"--nodes: cell {cell.cell} has no zone {target.zone}, it has {', '.join(zones)}")
    own = zones[target.zone].nodes
    more: list[Node] = [
        node.model_copy(update={"id": id})
        for node, id in zip(islice(cycle(own), max(target.nodes - len(own), 0)), names, strict=False)
    ]
    nodes = (*own[: target.nodes], *more)
    zones[target.zone] = zones[target.zone].model_copy(update={"nodes": nodes})
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
