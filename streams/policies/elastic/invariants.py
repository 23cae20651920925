"""The invariants of an elastic zone after every event."""

from collections.abc import Iterator

from streams.policies.elastic.workforce import Workforce


def broken_invariants(workforce: Workforce) -> Iterator[str]:
    """Yield a line for each broken invariant of workers and servers."""
    cluster = workforce.cluster
    servers = set(cluster.servers())
    for job_id, job in workforce.jobs.items():
        placed = workforce.placed(job)
        if placed != job.members:
            yield f"job {job_id} has workers {job.members}, and servers hold {placed} for it"
        if job.members and not job.workload.min_workers <= job.workers <= job.workload.max_workers:
            yield f"job {job_id} has {job.workers} workers"
        if job.since_s is not None and not job.members:
            yield f"job {job_id} makes progress without workers"
        for node in (*job.members, *job.leaving):
            if node not in servers:
                yield f"job {job_id} has workers on {node}, which has left the zone"
            if not workforce.is_busy(node):
                yield f"node {node} has workers of job {job_id}, and is not busy"
    for server in map(cluster.server, cluster.servers()):
        for job_id in server.jobs:
            if job_id not in workforce.jobs:
                yield f"server {server.server_id} has workers of job {job_id}, which the zone does not keep"
        if not 0 <= server.free <= server.gpus:
            yield f"server {server.server_id} has {server.free} of {server.gpus} GPUs free"
