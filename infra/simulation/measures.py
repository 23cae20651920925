"""Interface between a simulation and a policy's measures of it."""

from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Protocol

from infra.simulation.simulator import Step
from schemas.cells import CellConfigured
from schemas.kinds import KINDS

Table = Sequence[Mapping[str, Any]]
"""Rows with the same columns."""


class ZoneMeasures(Protocol):
    """Results of a simulation in one zone, folded step by step; they can be read at any step."""

    def __init__(self, cell: CellConfigured, zone: str) -> None:
        """Begin before the first step of a zone of this cell."""

    def take(self, step: Step) -> None:
        """Add the next step of the simulation."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for a summary."""

    def as_json(self) -> dict[str, Any]:
        """Return the results as a JSON object."""

    def tables(self) -> Mapping[str, Table]:
        """Return tables for files, by the file's name without its ending."""


def measures_of(cell: CellConfigured) -> dict[str, ZoneMeasures]:
    """Return the measures of each zone whose policy has any, by zone."""
    return {
        zone.id: resolve_name(reference)(cell, zone.id)
        for zone in cell.zones
        if (reference := KINDS[zone.policy.kind].measures) is not None
    }
