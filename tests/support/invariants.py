"""What holds of an auction zone after every event."""

import math
from itertools import pairwise

import numpy as np

from schemas.decisions import JobAdmitted
from schemas.registry import Outcome
from streams.auction.zone import AuctionZone


def check_zone(zone: AuctionZone) -> None:
    """No cell over its capacity, its use the sum of the plans, and the dual bound above the welfare.

    Raises:
        AssertionError: naming what does not hold.
    """
    market, fleet = zone.auctioneer.market, zone.fleet
    used_samples = np.zeros_like(market.free_samples)
    used_gib = np.zeros_like(market.free_gib)
    for job in zone.book.jobs.values():
        for slot, row in job.rows.items():
            if slot >= market.first_slot:
                used_samples[slot - market.first_slot, row] += job.quotas[slot]
                used_gib[slot - market.first_slot, row] += job.demand.memory_gib
    for index, node_class in enumerate(fleet.classes):
        rows = slice(node_class.start, node_class.stop)
        assert (market.free_samples[:, rows] >= 0).all(), f"class {index} is over its compute"
        assert (market.free_gib[:, rows] >= 0).all(), f"class {index} is over its memory"
        assert (market.free_samples[:, rows] + used_samples[:, rows] == node_class.capacity_samples).all()
        assert (market.free_gib[:, rows] + used_gib[:, rows] == node_class.capacity_gib).all()
    assert zone.auctioneer.welfare_micros <= zone.auctioneer.dual_bound.micros


def check_prices_never_fell(before: tuple[int, np.ndarray, np.ndarray], zone: AuctionZone) -> None:
    """Prices of the cells in both windows are no lower than before."""
    first, compute, memory = before
    passed = min(zone.auctioneer.market.first_slot - first, len(compute))
    kept = len(compute) - passed
    assert (zone.auctioneer.market.compute_price[:kept] >= compute[passed:]).all()
    assert (zone.auctioneer.market.memory_price[:kept] >= memory[passed:]).all()


def prices(zone: AuctionZone) -> tuple[int, np.ndarray, np.ndarray]:
    """The present prices, for `check_prices_never_fell`."""
    market = zone.auctioneer.market
    return market.first_slot, market.compute_price.copy(), market.memory_price.copy()


def check_outcome(outcome: Outcome) -> None:
    """A winner pays no more than it bid, and exactly its price rounded up."""
    if isinstance(outcome, JobAdmitted):
        price = outcome.offer.price
        assert price is not None
        parts = (price.vendor_micros, price.operational_micros, price.compute_micros, price.memory_micros)
        assert outcome.payment_micros == math.ceil(math.fsum(parts)) <= outcome.bid_micros
        plan = outcome.offer.plan
        assert plan is not None
        slots = [slot for slot, _ in plan.cells]
        assert all(early < late for early, late in pairwise(slots)), "one node per slot, in order"
