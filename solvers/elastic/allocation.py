"""State of a round of allocation: workers of each job by pool, and idle GPUs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from solvers.elastic.demand import Demand, Grant, Pool

POOLS: tuple[Pool, ...] = get_args(Pool)
ROUNDING_GPUS = 1e-6
"""Rounding error by which sums of normalised GPUs may be below a whole number."""


@dataclass(slots=True)
class _Held:
    """Workers of a job in the present round."""

    job: Demand
    workers: int
    pool: Pool
    flexible_pool: Pool

    @property
    def is_changed(self) -> bool:
        return self.workers != self.job.workers


class Allocation:
    """Workers of each job and idle GPUs of each pool, as decided so far in a round.

    Flexible workers are in the pool where their job has some already, else in that of its base demand: no
    scheme here places them in different pools on purpose. GPUs are whole numbers.

    Raises:
        ValueError: the idle GPUs of a pool are below 0.
    """

    def __init__(self, running: Sequence[Demand], free_gpus: Mapping[Pool, float]) -> None:
        self._idle_gpus = {pool: whole_gpus(free_gpus.get(pool, 0.0)) for pool in POOLS}
        if min(self._idle_gpus.values()) < 0:
            raise ValueError(f"idle GPUs of the pools are {dict(free_gpus)}, expected none below 0")
        self._held = {
            job.job_id: _Held(job, job.workers, job.pools[0], flexible_pool_of(job)) for job in running
        }
        self._flexible_gpus = dict.fromkeys(POOLS, 0)
        for job in running:
            more_workers = job.workers - job.min_workers
            self._flexible_gpus[flexible_pool_of(job)] += more_workers * job.gpus_per_worker

    def idle_gpus(self, pool: Pool) -> int:
        """Return the whole training GPUs that no job has."""
        return self._idle_gpus[pool]

    def workers(self, job: Demand) -> int:
        """Return the workers of a started job."""
        return self._held[job.job_id].workers

    def flexible_gpus(self, pool: Pool) -> int:
        """Return the training GPUs of all flexible workers in a pool."""
        return self._flexible_gpus[pool]

    def roomy_pool(self, job: Demand) -> Pool | None:
        """Return the first open pool of a job whose idle GPUs suffice for its base demand."""
        base_gpus = job.min_workers * job.gpus_per_worker
        return next((pool for pool in job.open_pools if self.idle_gpus(pool) >= base_gpus), None)

    def start(self, job: Demand, pool: Pool) -> None:
        """Allocate the base demand of a waiting job in a pool that has room for it."""
        self._idle_gpus[pool] -= job.min_workers * job.gpus_per_worker
        self._held[job.job_id] = _Held(job, job.min_workers, pool, pool)

    def resize(self, job: Demand, workers: int) -> None:
        """Set the workers of a started job, between its bounds and with room for new ones."""
        held = self._held[job.job_id]
        taken_gpus = (workers - held.workers) * job.gpus_per_worker
        self._idle_gpus[held.flexible_pool] -= taken_gpus
        self._flexible_gpus[held.flexible_pool] += taken_gpus
        held.workers = workers

    def grow(self, job: Demand, workers: int) -> int:
        """Add up to so many workers to a started job, as far as its bound and the idle GPUs allow.

        Returns:
            Number of workers added.
        """
        held = self._held[job.job_id]
        room_workers = self.idle_gpus(held.flexible_pool) // job.gpus_per_worker
        more = min(workers, room_workers, job.most_workers - held.workers)
        self.resize(job, held.workers + more)
        return more

    def speed(self, job: Demand, workers: int) -> float:
        """Return the speed of a started job with so many workers, over that of one worker."""
        held = self._held[job.job_id]
        return speed_with(job, workers, held.pool, held.flexible_pool)

    def grants(self) -> list[Grant]:
        """Return the grants of the jobs whose workers change, in the order of their arrival."""
        changed = [held for held in self._held.values() if held.is_changed]
        changed.sort(key=lambda held: held.job.arrival)
        return [Grant(held.job.job_id, held.workers, held.pool, held.flexible_pool) for held in changed]


def whole_gpus(gpus: float) -> int:
    """Return the whole GPUs in a sum of normalised ones."""
    return math.floor(gpus + ROUNDING_GPUS)


def flexible_pool_of(job: Demand) -> Pool:
    """Return the pool of a running job's flexible workers, present or future."""
    return job.flexible_pool or job.pools[0]


def speed_with(job: Demand, workers: int, pool: Pool, flexible_pool: Pool) -> float:
    """Return the speed of a job with so many workers, over one worker; slower if it spans both pools."""
    is_spanning = workers > job.min_workers and flexible_pool != pool
    return job.speedup[workers] * job.spanning_speed if is_spanning else job.speedup[workers]
