"""One round of allocation: what a scheme is asked about the jobs, and how its grants are carried out."""

from collections.abc import Iterator

from schemas.base import Outcome
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import MAX_WORKERS
from solvers.elastic.cluster import Cluster, placing_order
from solvers.elastic.demand import Demand, Grant, Pool, Scheme
from streams.policies.elastic.job import ElasticJob
from streams.policies.elastic.sizes import Sizes
from streams.policies.elastic.workforce import Workforce

_SPANNING_SPEED = {"basic": 1.0, "advanced": 0.7, "heterogeneous": 0.7, "ideal": 1.0}
"""What is left of a job's speed on several GPU types at a time, by scenario (thesis, section 3.7.1)."""


class Rounds:
    """Of one zone. A round begins with what the jobs and servers are now, and keeps nothing for the next."""

    def __init__(self, policy: ElasticPolicy, scheme: Scheme, workforce: Workforce, sizes: Sizes) -> None:
        self._policy = policy
        self._sizes = sizes
        self._scheme = scheme
        self._workforce = workforce
        workforce.spanning_speed = _SPANNING_SPEED[policy.scenario]

    def allocate(self) -> Iterator[Outcome]:
        """Decide who has how many workers, and place them."""
        workforce = self._workforce
        jobs = workforce.jobs
        waiting = [self._demand(job) for job in workforce.waiting]
        running = [self._demand(job) for job in workforce.resizable]
        grants = self._scheme.allocate(waiting, running, self._free_gpus(workforce.cluster))
        resized = [(jobs[grant.job_id], grant) for grant in grants if jobs[grant.job_id].members]
        started = [(jobs[grant.job_id], grant) for grant in grants if not jobs[grant.job_id].members]
        # What is given up makes room for all others; of these, large workers look for room before small ones.
        held = {job.arrival: workforce.shrink(job, grant) for job, grant in resized}
        made_way = f"jobs that waited: {len(started)}" if started else "jobs that gain more"
        growing = []
        for job, grant in resized:
            if grant.workers > held[job.arrival]:
                growing.append((job, grant))
            else:
                yield from workforce.regroup(job, held[job.arrival], grant, made_way)
        for job, grant in sorted(started, key=_placing_order):
            yield from workforce.start(job, grant)
        for job, grant in sorted(growing, key=_placing_order):
            yield from workforce.regroup(job, held[job.arrival], grant, made_way)

    def _demand(self, job: ElasticJob) -> Demand:
        """What a scheme is told of a job."""
        workload = job.workload
        spans = workload.heterogeneous and self._policy.scenario != "basic" and job.is_elastic
        return Demand(
            job_id=job.job.job_id,
            arrival=job.arrival,
            min_workers=workload.min_workers,
            max_workers=workload.max_workers,
            gpus_per_worker=workload.gpus_per_worker,
            remaining_work_s=self._workforce.work_left_s(job),
            speedup=job.speedup,
            pools=self._pools(job, spans),
            spans_pools=spans,
            spanning_speed=self._workforce.spanning_speed,
            workers=job.workers,
            flexible_pool=job.flexible_pool,
        )

    def _pools(self, job: ElasticJob, spans: bool) -> tuple[Pool, ...]:
        if job.pool is not None:
            return (job.pool,)
        workload, scenario = job.workload, self._policy.scenario
        any_type = (workload.fungible and scenario != "heterogeneous") or (
            workload.heterogeneous and scenario != "basic"
        )
        # Slower servers are no use to a job whose base demand there would be more workers than one may have.
        fits = workload.min_workers * self._sizes.most_per_worker <= MAX_WORKERS
        if not fits or not (any_type or self._sizes.has_one_speed):
            return ("training",)
        prefers_loans = job.is_elastic and self._policy.groups_elastic_jobs and not spans
        return ("loaned", "training") if prefers_loans and self._risks_little(job) else ("training", "loaned")

    def _risks_little(self, job: ElasticJob) -> bool:
        """Whether a preemption would take little from a job, see `most_work_at_risk_s`."""
        at_risk_s = self._workforce.work_left_s(job) / job.speedup[job.workload.max_workers]
        return job.workload.keeps_checkpoints or at_risk_s <= self._policy.most_work_at_risk_s

    @staticmethod
    def _free_gpus(cluster: Cluster) -> dict[Pool, float]:
        return {"training": cluster.free_gpus("training"), "loaned": cluster.free_gpus("loaned")}


def _placing_order(granted: tuple[ElasticJob, Grant]) -> tuple[int, int]:
    job, _ = granted
    return placing_order(job.workload.gpus_per_worker, job.arrival)
