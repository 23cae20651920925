"""The invariants of an experts zone after every event."""

from collections.abc import Iterator, Mapping

from streams.cell.jobs import Job
from streams.policies.experts.job import MoeJob
from streams.policies.experts.ranks import Ranks


def broken_invariants(ranks: Ranks, jobs: Mapping[str, Job]) -> Iterator[str]:
    """Yield a line for each broken invariant.

    Args:
        ranks: the jobs of the zone.
        jobs: the live jobs of the cell.
    """
    live = [job.job_id for job in jobs.values() if job.zone == ranks.zone]
    if sorted(live) != sorted(ranks.jobs):
        yield f"the zone keeps {len(ranks.jobs)} jobs, and {len(live)} of its jobs are live"
    held: dict[str, int] = {}
    for job in ranks.jobs.values():
        yield from _of_job(job)
        for node, count in (*job.members.items(), *job.leaving_ranks.items()):
            held[node] = held.get(node, 0) + count
            if job.job_id not in ranks.gpus.holders(node):
                yield f"job {job.job_id} has ranks on node {node}, and holds no devices there"
    for node, count in held.items():
        if count > ranks.gpus.nodes.get(node, 0):
            yield f"node {node} has {count} ranks on {ranks.gpus.nodes.get(node, 0)} devices"
    if ranks.gpus.used != sum(held.values()):
        yield f"{ranks.gpus.used} devices are held for {sum(held.values())} ranks"


def _of_job(job: MoeJob) -> Iterator[str]:
    name = f"job {job.job_id}"
    if job.members and sum(job.members.values()) != job.workload.ranks:
        yield f"{name} has {sum(job.members.values())} of {job.workload.ranks} ranks"
    if job.members and (job.leaving or job.is_ending):
        yield f"{name} has ranks while others are to go, or while it is ending"
    if job.members and job.is_awaited:
        yield f"{name} has ranks, and others were preempted for it"
    if job.members and (job.leader not in job.members or job.leader in job.done):
        yield f"{name} has no leader among {list(job.members)}"
    if not job.done.keys() <= job.members.keys():
        yield f"{name} has ranks that are done on nodes that are no members"
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
