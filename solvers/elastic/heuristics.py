"""Schemes that the thesis compares with, which give GPUs job by job (thesis, section 3.7.1).

First in, first out is the baseline, and opportunistic scheduling uses idle servers. Neither scales jobs. An
elastic job runs with its base demand, which in the thesis is the demand that the job requested; scaling only
adds to it. Gandiva (OSDI '18) grows jobs on idle GPUs while no job waits. AFS (NSDI '21) gives base demands,
then single workers by the largest gain.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import ClassVar

from solvers.elastic.demand import POOLS, Allocation, JobDemand, Pool, WorkerGrant, flexible_pool_of


class FirstInFirstOut:
    """Baseline of the thesis: strictly in the order of arrival. A job that does not fit blocks all later
    ones.

    A job starts in the first of its pools that has room. The baseline has no loans: its pool of loaned
    servers is empty.
    """

    keeps_order: ClassVar[bool] = True
    gives_turns: ClassVar[bool] = False

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[WorkerGrant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        for job in waiting:
            pool = allocation.roomy_pool(job)
            if pool is None:
                break
            allocation.start(job, pool)
        return allocation.grants()


class Opportunistic:
    """Two clusters, each with a queue that is first in, first out. Jobs that may run on loaned servers are in
    both queues, and use idle servers of inference first. All other jobs are only in the queue of the training
    servers.

    The thesis queues fungible jobs at the inference cluster "so they can opportunistically use the idle
    servers" (section 3.7.1), at a lower priority than inference. This is equivalent to a pool of all idle
    servers, which may be reclaimed at any time. They remain in the queue of the training cluster: its usage
    rises from 0.72 to 0.74 (Table 3.5, rows 1 and 6), and without 21 % of its load it would fall. A job at
    the head of a queue that finds no room blocks that queue.
    """

    keeps_order: ClassVar[bool] = True
    gives_turns: ClassVar[bool] = False

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[WorkerGrant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        blocked: set[Pool] = set()
        for job in waiting:
            queues: list[Pool] = [
                pool for pool in reversed(POOLS) if pool in job.pools and pool not in blocked
            ]
            base_gpus = job.min_workers * job.gpus_per_worker
            roomy = (
                pool for pool in queues if pool in job.open_pools and allocation.idle_gpus(pool) >= base_gpus
            )
            pool = next(roomy, None)
            if pool is None:
                blocked.update(queues)
            else:
                allocation.start(job, pool)
        return allocation.grants()


class Gandiva:
    """Opportunistic growth of jobs, regardless of which gains the most (thesis, section 3.7.1).

    Jobs start in the order of arrival, and one that does not fit blocks all others. Flexible workers are
    released for it if that suffices for its start: the latest job's first, and no more than necessary. Jobs
    grow only when no job waits: the earliest first, as far as possible.
    """

    keeps_order: ClassVar[bool] = True
    gives_turns: ClassVar[bool] = False

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[WorkerGrant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        givers: dict[Pool, list[JobDemand]] = {pool: [] for pool in POOLS}
        for job in running:
            givers[flexible_pool_of(job)].append(job)
        for job in waiting:
            pool = allocation.roomy_pool(job) or _vacated_pool(allocation, job, givers)
            if pool is None:
                return allocation.grants()
            allocation.start(job, pool)
        for job in sorted((*running, *waiting), key=lambda job: job.arrival):
            allocation.grow(job, job.max_workers)
        return allocation.grants()


def _vacated_pool(allocation: Allocation, job: JobDemand, givers: dict[Pool, list[JobDemand]]) -> Pool | None:
    """Release flexible workers so that a job's base demand fits in the first possible pool, and return the
    pool.

    None if it fits in no pool; then all workers stay.

    Args:
        givers: jobs by the pool of their flexible workers, the latest last. Jobs without flexible workers
            left are removed.
    """
    base_gpus = job.min_workers * job.gpus_per_worker
    for pool in job.open_pools:
        if allocation.idle_gpus(pool) + allocation.flexible_gpus(pool) < base_gpus:
            continue
        while (missing_gpus := base_gpus - allocation.idle_gpus(pool)) > 0:
            giver = givers[pool][-1]
            missing_workers = -(-missing_gpus // giver.gpus_per_worker)
            kept = max(giver.min_workers, allocation.workers(giver) - missing_workers)
            allocation.resize(giver, kept)
            if kept == giver.min_workers:
                givers[pool].pop()
        return pool
    return None


class Afs:
    """Allocation of base demands, then of one worker at a time to the job with the largest gain of throughput
    per GPU (thesis, section 3.7.1).

    Every round allocates all flexible workers again. Base demands go to the shortest job first, as AFS
    prefers where jobs outnumber GPUs, and a job that does not fit is skipped; the nearly equal queuing times
    of AFS and Lyra (Table 3.5, rows 11 and 13) agree with that. Throughput is in units of the job's own with
    one worker, the only unit that compares between models. A worker without a gain is not allocated.
    """

    keeps_order: ClassVar[bool] = False
    gives_turns: ClassVar[bool] = False

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[WorkerGrant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        for job in running:
            allocation.resize(job, job.min_workers)
        started = []
        for job in sorted(waiting, key=lambda job: (job.remaining_s(job.min_workers), job.arrival)):
            pool = allocation.roomy_pool(job)
            if pool is not None:
                allocation.start(job, pool)
                started.append(job)
        _share_out(allocation, [*running, *started])
        return allocation.grants()


def _share_out(allocation: Allocation, jobs: Sequence[JobDemand]) -> None:
    """Allocate the idle GPUs, worker by worker; ties by arrival."""
    steps = [
        (-_gain_per_gpu(allocation, job), job.arrival, index)
        for index, job in enumerate(jobs)
        if job.min_workers < job.most_workers
    ]
    heapq.heapify(steps)
    while steps and steps[0][0] < 0:
        job = jobs[steps[0][2]]
        if allocation.grow(job, 1) and allocation.workers(job) < job.most_workers:
            heapq.heapreplace(steps, (-_gain_per_gpu(allocation, job), *steps[0][1:]))
        else:
            heapq.heappop(steps)


def _gain_per_gpu(allocation: Allocation, job: JobDemand) -> float:
    """Return the gain of one more worker, per GPU."""
    workers = allocation.workers(job)
    gain = allocation.speed(job, workers + 1) - allocation.speed(job, workers)
    return gain / job.gpus_per_worker
