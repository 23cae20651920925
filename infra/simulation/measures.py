"""The interface between a simulation and what a policy measures in it."""

from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Protocol

from infra.simulation.simulator import Step
from schemas.cells import CellConfigured
from schemas.kinds import KINDS

Table = Sequence[Mapping[str, Any]]
"""Rows with the same columns."""


class ZoneMeasures(Protocol):
    """What a simulation comes to in one zone, step by step. What is told does not end the fold."""

    def __init__(self, cell: CellConfigured, zone: str) -> None:
        """Of a zone of this cell, before its first step."""

    def take(self, step: Step) -> None:
        """Take the next step of the simulation."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a summary says, by name."""

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""

    def tables(self) -> Mapping[str, Table]:
        """What is worth a file of its own, by the file's name without its ending."""


def measures_of(cell: CellConfigured) -> dict[str, ZoneMeasures]:
    """The measures of each zone whose policy has any, by zone."""
    return {
        zone.id: resolve_name(reference)(cell, zone.id)
        for zone in cell.zones
        if (reference := KINDS[zone.policy.kind].measures) is not None
    }
