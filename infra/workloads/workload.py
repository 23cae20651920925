"""A whole workload for a cell: its vendors' quotes and the bids for each of its zones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from infra.workloads.arrivals import Arrival
from infra.workloads.bids import BidDraw, Demands, TimedBid, draw_quotes
from schemas.cells import CellConfigured
from schemas.quotes import VendorQuoted


@dataclass(frozen=True)
class Workload:
    """What a cell is asked."""

    quotes: list[VendorQuoted]
    """Standing from the start on."""
    bids: list[TimedBid]
    """In the order of their times."""


def draw_workload(
    cell: CellConfigured,
    arrivals: Sequence[Arrival],
    start_s: float,
    seed: int,
    demands: Demands | None = None,
) -> Workload:
    """Draw what no trace tells of `arrivals`, from `start_s` on. A zone gets bids in proportion to its nodes.

    Raises:
        WorkloadError: a zone that gets bids has no throughput table.
    """
    quotes = draw_quotes(cell, seed)
    choice = random.Random(f"{seed}/zones")
    nodes = [len(zone.nodes) for zone in cell.zones]
    zones = choice.choices(range(len(cell.zones)), nodes, k=len(arrivals))
    bids: list[TimedBid] = []
    for index, zone in enumerate(cell.zones):
        share = [arrival for arrival, chosen in zip(arrivals, zones, strict=True) if chosen == index]
        if share:
            draw = BidDraw(cell, zone, quotes, seed, demands or Demands())
            bids += draw.bids(share, start_s, id_prefix=f"{zone.id}-{seed}")
    return Workload(quotes, sorted(bids, key=lambda timed: timed.time_s))
