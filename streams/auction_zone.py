"""A zone under the auction policy."""

from collections.abc import Iterator
from typing import Any

from schemas.cells import CellConfigured, Zone
from schemas.fleet import FleetEvent
from schemas.jobs import JobEvent
from schemas.quotes import VendorLeft, VendorQuoted
from schemas.registry import Outcome


class AuctionZone:
    """Placeholder of the branch in progress."""

    def __init__(self, cell: CellConfigured, zone: Zone) -> None:
        self.zone = zone

    def on_job(self, event: JobEvent) -> Iterator[Outcome]:
        yield from ()

    def on_quote(self, event: VendorQuoted | VendorLeft) -> Iterator[Outcome]:
        yield from ()

    def on_fleet(self, event: FleetEvent) -> Iterator[Outcome]:
        yield from ()

    def on_clock(self, time_s: float) -> Iterator[Outcome]:
        yield from ()

    def knows_job(self, job_id: str) -> bool:
        return False

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
