"""Events of the `cells` topic that change a running cell: its nodes, and the configuration of its zones.

A change becomes part of the cell's configuration if it is valid and keeps all promises to admitted jobs.
Otherwise the event is ignored, with the reason.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Event, Identifier
from schemas.cells import Tariff, Zone


class CellChange(Event):
    """An operator's change of a running cell."""


class ZoneConfigured(CellChange):
    """Replaces a zone's configuration from now on, or adds a zone to the cell.

    Its nodes are those that the zone owns, lent ones included. New nodes join, and omitted ones retire. A
    zone keeps its policy, and while it has jobs also its base model; its plans fit into the new horizon and
    the new capacities, and at the new speeds.
    """

    TYPE: ClassVar = "millrace.zone.configured.v1"

    zone: Zone
    tariffs: Annotated[tuple[Tariff, ...], Field(max_length=64)] = ()
    """Tariffs that are added to the cell's or replace those of the same name, also for nodes of other
    zones."""


class NodeOrder(CellChange):
    """A change of one node of a cell."""

    node: Identifier


class NodeRegistered(NodeOrder):
    """A node joins the cell in this zone, which owns it. It is used after its first report."""

    TYPE: ClassVar = "millrace.node.registered.v1"

    zone: Identifier
    gpu_type: Identifier
    tariff: Identifier


class NodeRetired(NodeOrder):
    """A node leaves the cell for good, once its runs are over and its plans are over or moved elsewhere."""

    TYPE: ClassVar = "millrace.node.retired.v1"


class NodeLent(NodeOrder):
    """A node serves another zone until it is returned. It leaves its own zone as when it retires."""

    TYPE: ClassVar = "millrace.node.lent.v1"

    zone: Identifier
    """The borrower, which must have the node's GPU type."""


class NodeReturned(NodeOrder):
    """A lent node returns to the zone that owns it. It leaves the borrowing zone as when it retires."""

    TYPE: ClassVar = "millrace.node.returned.v1"


class NodeCordoned(NodeOrder):
    """No new work is planned on a node; existing plans stay."""

    TYPE: ClassVar = "millrace.node.cordoned.v1"


class NodeUncordoned(NodeOrder):
    """New work is planned on a cordoned node again."""

    TYPE: ClassVar = "millrace.node.uncordoned.v1"
