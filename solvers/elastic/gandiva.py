"""Gandiva's elasticity (OSDI '18), as the thesis adapts it: jobs grow on idle GPUs while no job waits."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from solvers.elastic.allocation import POOLS, Allocation, flexible_pool_of
from solvers.elastic.demand import Demand, Grant, Pool


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
        waiting: Sequence[Demand],
        running: Sequence[Demand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[Grant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        givers: dict[Pool, list[Demand]] = {pool: [] for pool in POOLS}
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


def _vacated_pool(allocation: Allocation, job: Demand, givers: dict[Pool, list[Demand]]) -> Pool | None:
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
