"""The invariants of an auction zone after every event, and its promise to admitted jobs: their plans can be
carried out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from schemas.auction.settings import NoMergingPolicy
from schemas.cells import Zone
from schemas.lora_commands import MAX_RUNS_PER_SLOT
from solvers.auction.market.demand import Demand, UnplannableError, least_counted_gib
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Market, rows_of_both
from solvers.auction.market.node_slots import PriceOrder
from solvers.auction.mechanism.auctioneer import Auctioneer
from streams.cell.jobs import Job
from streams.policies.auction.admission import AdmissionControl
from streams.policies.auction.book import JobBook
from streams.policies.auction.planned_job import LATE_REPORT_SLOTS, PlannedJob
from streams.policies.policy import BrokenPromise, ZoneContext


def broken_promises(
    market: Market, jobs: Mapping[str, PlannedJob], context: ZoneContext
) -> Iterator[BrokenPromise]:
    """Yield the jobs and nodes whose plans a new configuration would break. It is then refused. The
    operational cost of plans may change, at the provider's expense.

    Args:
        market: present market, with every node of a plan.
        context: the zone with its new configuration, with every node of a plan.
    """
    fleet = Fleet.of(context.cell, context.zone)
    for job in jobs.values():
        yield from _of_job(job, market, fleet, context)
    yield from _of_nodes(market, jobs, fleet)


def _of_job(job: PlannedJob, market: Market, fleet: Fleet, context: ZoneContext) -> Iterator[BrokenPromise]:
    ahead = job.ahead(market.first_slot)
    horizon_slots = context.zone.horizon_slots
    if ahead.slots and ahead.slots[-1] >= market.first_slot + horizon_slots:
        yield {
            "case": "beyond_the_horizon",
            "job_id": job.job_id,
            "slot": ahead.slots[-1],
            "horizon_slots": horizon_slots,
        }
    try:
        # Each quota counts as a whole task: either it is trained in one slot, or it cannot be.
        demands = {
            quota: Demand.of(job.workload, quota, context.zone, fleet, context.cell.slot_s, job.profiles)
            for quota in {job.workload.work_samples, *(job.quotas[slot] for slot in ahead.slots)}
            if quota
        }
    except UnplannableError as error:
        yield {"case": "unjudgeable", "job_id": job.job_id, "because": error.reason, **error.facts}
        return
    for slot, row in ahead.node_slots():
        if not job.quotas[slot]:
            continue
        demand = demands[job.quotas[slot]]
        node, before = market.fleet.nodes[row], market.fleet.classes[market.fleet.class_of_row[row]]
        index = fleet.class_of_row[fleet.row_of[node]]
        if fleet.classes[index].gpu_type != before.gpu_type:
            yield {
                "case": "other_gpu_type",
                "job_id": job.job_id,
                "node": node,
                "gpu_type": before.gpu_type,
            }
            return
        if demand.samples[index] < job.quotas[slot]:
            yield {
                "case": "quota_too_large",
                "job_id": job.job_id,
                "slot": slot,
                "node": node,
                "quota_samples": job.quotas[slot],
                "samples": int(demand.samples[index]),
            }
            return


def _of_nodes(market: Market, jobs: Mapping[str, PlannedJob], fleet: Fleet) -> Iterator[BrokenPromise]:
    runs = Counter(
        node_slot for job in jobs.values() for node_slot in job.ahead(market.first_slot).node_slots()
    )
    most_runs: dict[int, int] = {}
    for (_, row), count in runs.items():
        most_runs[row] = max(most_runs.get(row, 0), count)
    least_gib = least_counted_gib(fleet)
    for old, new in zip(*rows_of_both(market.fleet, fleet), strict=True):
        node, node_class = fleet.nodes[new], fleet.classes[fleet.class_of_row[new]]
        samples = float(np.max(market.capacity_samples[old] - market.free_samples[:, old]))
        gib = float(np.max(market.capacity_gib[old] - market.free_gib[:, old]))
        if samples > node_class.capacity_samples or gib > node_class.capacity_gib:
            yield {
                "case": "node_too_small",
                "node": node,
                "taken_samples": samples,
                "taken_gib": gib,
                "capacity_samples": float(node_class.capacity_samples),
                "capacity_gib": float(node_class.capacity_gib),
            }
        # On a node that grows, new tasks fill the added memory besides the present ones.
        grown_gib = node_class.capacity_gib - market.capacity_gib[old]
        if grown_gib > 0 and most_runs.get(int(old), 0) + grown_gib / least_gib > MAX_RUNS_PER_SLOT:
            yield {"case": "too_many_runs", "node": node, "most_runs": MAX_RUNS_PER_SLOT}


def broken_invariants(
    zone: Zone, auctioneer: Auctioneer, book: JobBook, admission: AdmissionControl, jobs: Mapping[str, Job]
) -> Iterator[str]:
    """Yield a line for each broken invariant. It sums over all node-slots: milliseconds in a large zone.

    Tests check them, and workers with `MILLRACE_VALIDATE`: a fault in the code then stops a cell where it
    appears, and not where it first does harm.
    """
    yield from _room(auctioneer.market, book)
    yield from _prices(auctioneer.market)
    yield from _jobs(zone.id, book, admission, jobs)
    if auctioneer.welfare.planned_micros > auctioneer.prices.bound_micros:
        yield "the plans as admitted are worth more than their bound"
    if isinstance(zone.policy, NoMergingPolicy):
        # Nodes of past slots may have left: they all have the row `NODE_LEFT`.
        jobs_at = Counter(
            node_slot
            for job in book.jobs.values()
            for node_slot in job.rows.items()
            if node_slot[0] >= auctioneer.market.first_slot
        )
        for (slot, row), count in jobs_at.items():
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
    expected = PriceOrder(bounds, market.compute_price, market.memory_price)
    if (market.price_order.rows != expected.rows).any() or (
        market.price_order.memory_ahead != expected.memory_ahead
    ).any():
        yield "nodes are not in the order of their prices"


def _jobs(zone: str, book: JobBook, admission: AdmissionControl, jobs: Mapping[str, Job]) -> Iterator[str]:
    """Check that the cell's register and the zone have the same jobs, and that no job is kept long after its
    deadline."""
    for job_id, planned in book.jobs.items():
        if jobs.get(job_id) is not planned.job or planned.job.state != "admitted":
            yield f"job {job_id} has a plan, and is not admitted in the cell"
        if any(slot > planned.last_slot for slot in planned.rows):
            yield f"job {job_id} is planned after its deadline"
        if planned.awaits_delivery and (planned.runs or planned.started(book.present_slot + 1)):
            yield f"job {job_id} has run before the delivery of its data"
        if book.present_slot > planned.last_slot + LATE_REPORT_SLOTS:
            yield f"job {job_id} outlives its last slot, {planned.last_slot}, in slot {book.present_slot}"
    for job_id, job in jobs.items():
        if job.zone == zone and job_id not in book.jobs and not admission.has(job_id):
            yield f"job {job_id} is {job.state} in the cell, and missing in its zone"
