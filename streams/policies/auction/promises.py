"""A zone's promise to admitted jobs: their plans can be carried out.

A change of the configuration that breaks a plan is refused. The operational cost of plans may change, at the
provider's expense.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from schemas.lora_commands import MAX_RUNS_PER_SLOT
from solvers.auction.market.demand import Demand, UnjudgeableError, least_counted_gib
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Market, rows_of_both
from streams.policies.auction.job import PlannedJob
from streams.policies.policy import BrokenPromise, ZoneContext


def broken_promises(
    market: Market, jobs: Mapping[str, PlannedJob], context: ZoneContext
) -> Iterator[BrokenPromise]:
    """Yield the jobs and nodes whose plans would break.

    Args:
        market: present market, with every node of a plan.
        jobs: admitted jobs.
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
            quota: Demand.of(job.workload, quota, context.zone, fleet, context.cell.slot_s)
            for quota in {job.workload.work_samples, *(job.quotas[slot] for slot in ahead.slots)}
            if quota
        }
    except UnjudgeableError as error:
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
