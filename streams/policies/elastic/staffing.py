"""What an elastic zone says of itself from time to time, for those who watch it."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.elastic.staffing import PoolGpus, ServerReturn, WaitingJob, ZoneStaffed
from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import Pool
from solvers.elastic.lent import Lent, Reclaim, lent_by
from solvers.elastic.reclaiming import Choice, preemption_costs
from streams.policies.elastic.job import ElasticJob
from streams.policies.elastic.workforce import Workforce

ROUNDS_BETWEEN = 5
"""It takes milliseconds in a large zone, so it is not said after every round."""
MOST_QUEUED = 32
MOST_RETURNS = 3


@dataclass
class Staffing:
    """When one zone is described next."""

    has_changed: bool = False
    """Whether there is anything to say that was not said."""
    next_s: float = 0.0
    """Not before this."""

    def is_due(self, time_s: float) -> bool:
        """Whether to describe it now."""
        return self.has_changed and time_s >= self.next_s

    def told(self, next_s: float) -> None:
        """It is described now."""
        self.has_changed, self.next_s = False, next_s


def staffed(zone: str, workforce: Workforce, on_loan: Sequence[str], choose: Choice) -> ZoneStaffed:
    """How a zone is staffed now.

    Args:
        zone: its id.
        on_loan: the servers that could be wanted back.
        choose: how those are chosen that go.
    """
    running = [job for job in workforce.jobs.values() if job.members]
    reclaim, lent = _next_reclaim(workforce.cluster, on_loan, choose)
    return ZoneStaffed(
        zone=zone,
        jobs_waiting=workforce.jobs_without_workers,
        jobs_running=len(running),
        workers=sum(job.workers for job in running),
        training=_gpus(workforce.cluster, "training"),
        loaned=_gpus(workforce.cluster, "loaned"),
        queue=_queue(workforce),
        on_loan=len(on_loan),
        harmless_returns=reclaim.harmless,
        next_returns=_returns(reclaim, lent),
    )


def _gpus(cluster: Cluster, pool: Pool) -> PoolGpus:
    servers = cluster.servers(pool)
    gpus = sum(map(cluster.gpus_of, servers))
    return PoolGpus(gpus=gpus, used_gpus=gpus - sum(map(cluster.free_of, servers)))


def _queue(workforce: Workforce) -> tuple[WaitingJob, ...]:
    def running_s(job: ElasticJob) -> float:
        return workforce.work_left_s(job) / job.speedup[job.workload.max_workers]

    entries = ((running_s(job), job.arrival, job) for job in workforce.waiting)
    return tuple(
        WaitingJob(
            job_id=job.job.job_id,
            base_gpus=job.workload.min_workers * job.workload.gpus_per_worker,
            running_s=left_s,
        )
        for left_s, _, job in heapq.nsmallest(MOST_QUEUED, entries)
    )


def _next_reclaim(cluster: Cluster, on_loan: Sequence[str], choose: Choice) -> tuple[Reclaim, Lent]:
    """A reclaim just large enough to show who would be preempted first.

    As many servers as may go before that cost nothing each by itself. There may be more of these: two of them
    may have flexible workers of the same job.
    """
    lent = lent_by(cluster, on_loan)
    harmless = sum(cost == 0.0 for cost in preemption_costs(lent).values())
    reclaim = choose(lent, min(harmless + MOST_RETURNS, len(on_loan)))
    if len(reclaim.servers) > reclaim.harmless + MOST_RETURNS:
        reclaim = choose(lent, reclaim.harmless + MOST_RETURNS)
    return reclaim, lent


def _returns(reclaim: Reclaim, lent: Lent) -> tuple[ServerReturn, ...]:
    """The first servers of a reclaim that are not harmless."""
    preempted = set(reclaim.preempted)
    left = [job for job in lent.jobs if job.job_id in preempted]
    returns = []
    for server in reclaim.servers[reclaim.harmless :][:MOST_RETURNS]:
        hit = sorted(job.job_id for job in left if server in job.all_workers())
        left = [job for job in left if server not in job.all_workers()]
        scaled_in = tuple(job_id for job_id, workers in reclaim.scaled_in.items() if server in workers)
        returns.append(ServerReturn(server=server, preempts=tuple(hit), scales_in=scaled_in))
    return tuple(returns)
