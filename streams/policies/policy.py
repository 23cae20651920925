"""The seam between a cell and the policy that runs one of its zones."""

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from schemas.cells import CellConfigured, Zone
from schemas.fleet import FleetEvent
from schemas.jobs import JobEvent
from schemas.quotes import VendorLeft, VendorQuoted
from schemas.registry import Outcome
from schemas.solves import SolveFinished
from streams.cell.live_bytes import LiveBytes


class ZonePolicy(Protocol):
    """Decides for one zone. Every method is deterministic, takes no time but the cell's, and does no I/O."""

    def __init__(self, cell: CellConfigured, zone: Zone, live: LiveBytes) -> None:
        """`live` counts what the live jobs of all zones of the cell take in its snapshot."""

    def on_job(self, event: JobEvent) -> Iterator[Outcome]:
        """A bid, a withdrawal or a request for a quote."""

    def on_quote(self, event: VendorQuoted | VendorLeft) -> None:
        """A labour vendor's standing quote."""

    def on_fleet(self, event: FleetEvent) -> Iterator[Outcome]:
        """A report about one of the zone's nodes or about a run on it."""

    def on_clock(self, time_s: float) -> Iterator[Outcome]:
        """It is `time_s` now: close slots, open slots."""

    def on_solve(self, event: SolveFinished) -> Iterator[Outcome]:
        """A solver's answer, to a request of this zone or to none."""

    def knows_job(self, job_id: str, user: str) -> bool:
        """Whether this user can bid under this id no more: a bid of any user won under it here, or waits for
        its decision, or one of this user lost, within the window that the zone remembers."""

    def watched_nodes(self) -> Collection[str]:
        """Nodes that were heard and are not lost."""

    def awaits_node(self, node: str) -> bool:
        """Whether a sign of life of this node, which is one of the zone's, would change anything."""

    def state(self) -> dict[str, Any]:
        """Everything that the decisions to come depend on, of types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of an equally configured zone."""
