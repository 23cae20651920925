"""The invariants of an auction zone after every event.

Tests check them, and workers with `MILLRACE_VALIDATE`: a fault in the code then stops a cell where it
appears, and not where it first does harm.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from schemas.auction.settings import NoMergingPolicy
from schemas.cells import Zone
from solvers.auction.market.market import Market
from solvers.auction.market.node_slots import PriceOrder
from solvers.auction.mechanism.auctioneer import Auctioneer
from streams.cell.jobs import Job
from streams.policies.auction.book import JobBook
from streams.policies.auction.judge import Judge
from streams.policies.auction.outlook import LATE_REPORT_SLOTS


def broken_invariants(
    zone: Zone, auctioneer: Auctioneer, book: JobBook, judge: Judge, jobs: Mapping[str, Job]
) -> Iterator[str]:
    """Yield a line for each broken invariant. It sums over all node-slots: milliseconds in a large zone.

    Args:
        zone: its configuration.
        auctioneer: its market, welfare and bound.
        book: its admitted jobs.
        judge: its jobs that wait for a verdict.
        jobs: the live jobs of the cell.
    """
    yield from _room(auctioneer.market, book)
    yield from _prices(auctioneer.market)
    yield from _jobs(zone.id, book, judge, jobs)
    if auctioneer.welfare.planned_micros > auctioneer.prices.bound_micros:
        yield "the plans as admitted are worth more than their bound"
    if isinstance(zone.policy, NoMergingPolicy):
        # Nodes of past slots may have left: they all have the row `NODE_LEFT`.
        taken = Counter(
            node_slot
            for job in book.jobs.values()
            for node_slot in job.rows.items()
            if node_slot[0] >= auctioneer.market.first_slot
        )
        for (slot, row), count in taken.items():
            if count > 1:
                yield f"{count} jobs share slot {slot} of node row {row}"


def _room(market: Market, book: JobBook) -> Iterator[str]:
    """Check that free and planned room add up to the capacity of each node, in every slot."""
    used_samples, used_gib = np.zeros_like(market.free_samples), np.zeros_like(market.free_gib)
    for job in book.jobs.values():
        for slot, row in job.rows.items():
            if slot >= market.first_slot:
                used_samples[slot - market.first_slot, row] += job.quotas[slot]
                used_gib[slot - market.first_slot, row] += job.demand.memory_gib
    for node_class in market.fleet.classes:
        rows = slice(node_class.start, node_class.stop)
        name = f"{node_class.gpu_type} under tariff {node_class.tariff.name}"
        if (market.free_samples[:, rows] < 0).any() or (market.free_gib[:, rows] < 0).any():
            yield f"nodes of {name} are used beyond their capacity"
        if (market.free_samples[:, rows] + used_samples[:, rows] != node_class.capacity_samples).any():
            yield f"free and planned samples of {name} are not the capacity"
        if (market.free_gib[:, rows] + used_gib[:, rows] != node_class.capacity_gib).any():
            yield f"free and planned memory of {name} is not the capacity"


def _prices(market: Market) -> Iterator[str]:
    if not (np.isfinite(market.compute_price).all() and np.isfinite(market.memory_price).all()):
        yield "a price is not finite"
    bounds = np.array([node_class.start for node_class in market.fleet.classes] + [len(market.fleet.nodes)])
    sorted_anew = PriceOrder(bounds, market.compute_price, market.memory_price)
    if (market.price_order.rows != sorted_anew.rows).any() or (
        market.price_order.memory_ahead != sorted_anew.memory_ahead
    ).any():
        yield "nodes are not in the order of their prices"


def _jobs(zone: str, book: JobBook, judge: Judge, jobs: Mapping[str, Job]) -> Iterator[str]:
    """Check that the cell's register and the zone have the same jobs, and that no job is kept long after its
    deadline."""
    for job_id, planned in book.jobs.items():
        if jobs.get(job_id) is not planned.job or planned.job.state != "admitted":
            yield f"job {job_id} has a plan, and is not admitted in the cell"
        if any(slot > planned.last_slot for slot in planned.rows):
            yield f"job {job_id} is planned after its deadline"
        if book.present_slot > planned.last_slot + LATE_REPORT_SLOTS:
            yield f"job {job_id} outlives its last slot, {planned.last_slot}, in slot {book.present_slot}"
    for job_id, job in jobs.items():
        if job.zone == zone and job_id not in book.jobs and not judge.has(job_id):
            yield f"job {job_id} is {job.state} in the cell, and missing in its zone"
