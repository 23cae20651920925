"""A zone's promise to admitted jobs: that their plans can be carried out.

A change of its configuration that would break a plan is refused. The operating cost of plans may change, at
the provider's expense.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from schemas.lora_commands import MAX_RUNS_PER_SLOT
from solvers.auction.market.carry_over import rows_of_both
from solvers.auction.market.demand import Demand, UnjudgeableError, least_counted_gib
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Market
from streams.policies.auction.job import PlannedJob
from streams.policies.policy import ZoneContext


def broken_promises(market: Market, jobs: Mapping[str, PlannedJob], context: ZoneContext) -> Iterator[str]:
    """A line for each job or node whose plans would not hold.

    Args:
        market: as it is now, with every node that is planned on.
        jobs: the admitted ones.
        context: the zone as it is to be, with all nodes that jobs are planned on.
    """
    fleet = Fleet.of(context.cell, context.zone)
    for job in jobs.values():
        yield from _of_job(job, market, fleet, context)
    yield from _of_nodes(market, jobs, fleet)


def _of_job(job: PlannedJob, market: Market, fleet: Fleet, context: ZoneContext) -> Iterator[str]:
    ahead = job.ahead(market.first_slot)
    horizon_slots = context.zone.horizon_slots
    if ahead.slots and ahead.slots[-1] >= market.first_slot + horizon_slots:
        yield f"job {job.job_id} is planned in slot {ahead.slots[-1]}, beyond {horizon_slots} slots ahead"
    try:
        # Of each quota as if it were all of the work: that is trained in one slot, or cannot be.
        demands = {
            quota: Demand.of(job.workload, quota, context.zone, fleet, context.cell.slot_s)
            for quota in {job.workload.work_samples, *(job.quotas[slot] for slot in ahead.slots)}
            if quota
        }
    except UnjudgeableError as error:
        yield f"job {job.job_id} could not be planned again: {error.detail}"
        return
    for slot, row in ahead.node_slots():
        if not job.quotas[slot]:
            continue
        demand = demands[job.quotas[slot]]
        node, before = market.fleet.nodes[row], market.fleet.classes[market.fleet.class_of_row[row]]
        index = fleet.class_of_row[fleet.row_of[node]]
        if fleet.classes[index].gpu_type != before.gpu_type:
            yield f"job {job.job_id} is planned on node {node}, which would be no {before.gpu_type} any more"
            return
        if demand.samples[index] < job.quotas[slot]:
            yield (
                f"job {job.job_id} is to train {job.quotas[slot]} samples in slot {slot} on node {node}, "
                f"which would train {demand.samples[index]}"
            )
            return


def _of_nodes(market: Market, jobs: Mapping[str, PlannedJob], fleet: Fleet) -> Iterator[str]:
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
            yield (
                f"on node {node} {samples:.0f} samples per slot and {gib} GiB are taken, and it would have "
                f"{node_class.capacity_samples:.0f} samples and {node_class.capacity_gib} GiB"
            )
        # Tasks that were counted for less are followed by tasks that fill what a larger node has left.
        grown_gib = node_class.capacity_gib - market.capacity_gib[old]
        if grown_gib > 0 and most_runs.get(int(old), 0) + grown_gib / least_gib > MAX_RUNS_PER_SLOT:
            yield f"node {node} could get more than {MAX_RUNS_PER_SLOT} runs in a slot: its jobs end first"
