"""The invariants of an experts zone after every event."""

from collections.abc import Iterator

from streams.policies.experts.moe_job import MoeJob
from streams.policies.experts.rank_allocation import Ranks


def broken_invariants(ranks: Ranks) -> Iterator[str]:
    """Yield a line for each broken invariant of claims and placements."""
    for job in ranks.jobs.values():
        yield from _of_job(job)


def _of_job(job: MoeJob) -> Iterator[str]:
    name = f"job {job.job_id}"
    if job.members and job.is_awaited:
        yield f"{name} has ranks, and others were preempted for it"
    if job.popularity is None:
        return
    for layer in job.popularity.placement:
        experts = set(range(job.popularity.shape[1]))
        if {expert for device in layer.devices for expert in device} != experts:
            yield f"{name} has experts of layer {layer.layer} on no device"
        if len(layer.devices) != job.cluster.devices:
            yield f"{name} has layer {layer.layer} on {len(layer.devices)} devices"
        if max(map(len, layer.devices)) > job.cluster.most_per_device:
            yield f"{name} has too many experts of layer {layer.layer} on one device"
