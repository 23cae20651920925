"""What an elastic zone says of itself from time to time, for those who watch it."""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.elastic.staffing import PoolGpus, ReclaimEffect, WaitingJob, ZoneStaffed
from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import Pool
from solvers.elastic.lent import Lent, Reclaim, lent_by
from solvers.elastic.reclaiming import Choice, preemption_costs
from streams.policies.elastic.job import ElasticJob
from streams.policies.elastic.workforce import Workforce

ROUNDS_BETWEEN = 5
"""It takes milliseconds in a large zone, so it is not said after every round."""
MOST_QUEUED = 32
RECLAIMS_AHEAD = 2


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
    lent = lent_by(workforce.cluster, on_loan)
    harmless = _harmless(lent, choose)
    ahead = range(harmless + 1, min(harmless + RECLAIMS_AHEAD, len(on_loan)) + 1)
    return ZoneStaffed(
        zone=zone,
        jobs_waiting=workforce.jobs_without_workers,
        jobs_running=len(running),
        workers=sum(job.workers for job in running),
        training=_gpus(workforce.cluster, "training"),
        loaned=_gpus(workforce.cluster, "loaned"),
        queue=_queue(workforce),
        on_loan=len(on_loan),
        harmless_returns=harmless,
        next_reclaims=tuple(_effect(choose(lent, count)) for count in ahead),
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


def _harmless(lent: Lent, choose: Choice) -> int:
    """How many servers may be wanted back at once before a job is preempted: no more than would preempt
    nobody each by itself, and fewer where several of these have flexible workers of the same job."""
    most = sum(cost == 0.0 for cost in preemption_costs(lent).values())
    return bisect_left(range(most), True, key=lambda taken: bool(choose(lent, taken + 1).preempted))


def _effect(reclaim: Reclaim) -> ReclaimEffect:
    return ReclaimEffect(
        servers=len(reclaim.servers),
        preempting=reclaim.servers[reclaim.harmless :],
        preempts=reclaim.preempted,
    )
