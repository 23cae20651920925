"""Demands of jobs, the grants by which schemes of allocation answer them, and the state of a round.

Jobs are allocated workers in two pools: the zone's own training servers, and servers on loan. All quantities
are in training GPUs: a loaned GPU counts as the fraction of one that equals its speed (erratum L4).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

Pool = Literal["training", "loaned"]

POOLS: tuple[Pool, ...] = get_args(Pool)
ROUNDING_GPUS = 1e-6
"""Rounding error by which sums of normalised GPUs may be below a whole number."""


class JobDemand(NamedTuple):
    """A job that waits, or that may be resized."""

    job_id: str
    arrival: int
    """Rank by submission, ascending. No two jobs have the same."""
    min_workers: int
    """Least workers (w_min)."""
    max_workers: int
    """Most workers (w_max)."""
    gpus_per_worker: int
    remaining_work_s: float
    """Seconds that the rest of the job takes with one worker on a training server."""
    speedup: Sequence[float]
    """`speedup[w]` is the speed of w workers over that of one: `max_workers + 1` values, the first 0."""
    pools: tuple[Pool, ...]
    """Pools where it may run, preferred first; for a running job, the pool of its base demand."""
    spans_pools: bool = False
    """Whether its flexible demand may be in another pool than its base demand."""
    comes_last: bool = False
    """Whether all other jobs precede it (heterogeneous jobs, thesis, section 3.6)."""
    spanning_speed: float = 1.0
    """Fraction of its speed that remains when it spans both pools."""
    workers: int = 0
    """Present workers; 0 for a job that waits."""
    flexible_pool: Pool | None = None
    """Pool of its flexible workers, if it has any."""
    room_workers: int | None = None
    """Bound on its workers because free GPUs are scattered over servers; None if unknown."""
    barred_pools: frozenset[Pool] = frozenset()
    """Pools whose free GPUs are too scattered for its base demand, however many there are."""

    @property
    def most_workers(self) -> int:
        """Most workers that it may be granted."""
        return self.max_workers if self.room_workers is None else min(self.max_workers, self.room_workers)

    @property
    def open_pools(self) -> tuple[Pool, ...]:
        """Pools where it may start in this round, preferred first."""
        if not self.barred_pools:
            return self.pools
        return tuple(pool for pool in self.pools if pool not in self.barred_pools)

    def remaining_s(self, workers: int) -> float:
        """Return the duration of the rest of the job with a number of workers, in seconds."""
        return self.remaining_work_s / self.speedup[workers]


class WorkerGrant(NamedTuple):
    """Workers of a job from this round on. A job without a grant keeps its workers, or continues to wait."""

    job_id: str
    workers: int
    """Number of workers, at least `min_workers`."""
    pool: Pool
    """Pool of the base demand."""
    flexible_pool: Pool
    """Pool of the workers beyond it."""


class Scheme(Protocol):
    """Scheme of allocating workers. Deterministic: ties go by `arrival`."""

    keeps_order: ClassVar[bool]
    """Whether a job without room on the servers blocks later ones. Jobs are then placed in the order of their
    arrival, else by decreasing size, since more of them fit."""

    gives_turns: ClassVar[bool]
    """Whether a waiting job could be overtaken for ever, and so gets a turn to be first."""

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,
    ) -> list[WorkerGrant]:
        """Decide one round.

        Args:
            waiting: jobs without workers, in the order of their arrival.
            running: jobs whose workers beyond the base demand may be removed or moved, in the same order.
            free_gpus: idle GPUs of each pool, in training GPUs, without those of flexible workers.
            trial: number of earlier decisions of this round that found no room on the servers. A scheme that
                bounds the work of a round divides it among the trials.

        Returns:
            Grants to waiting jobs that start and to running jobs that are resized. They fit into the idle
            GPUs and those that other grants give up.
        """


@dataclass(slots=True)
class _Held:
    """Workers of a job in the present round."""

    job: JobDemand
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

    def __init__(self, running: Sequence[JobDemand], free_gpus: Mapping[Pool, float]) -> None:
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

    def workers(self, job: JobDemand) -> int:
        """Return the workers of a started job."""
        return self._held[job.job_id].workers

    def flexible_gpus(self, pool: Pool) -> int:
        """Return the training GPUs of all flexible workers in a pool."""
        return self._flexible_gpus[pool]

    def roomy_pool(self, job: JobDemand) -> Pool | None:
        """Return the first open pool of a job whose idle GPUs suffice for its base demand."""
        base_gpus = job.min_workers * job.gpus_per_worker
        return next((pool for pool in job.open_pools if self.idle_gpus(pool) >= base_gpus), None)

    def start(self, job: JobDemand, pool: Pool) -> None:
        """Allocate the base demand of a waiting job in a pool that has room for it."""
        self._idle_gpus[pool] -= job.min_workers * job.gpus_per_worker
        self._held[job.job_id] = _Held(job, job.min_workers, pool, pool)

    def resize(self, job: JobDemand, workers: int) -> None:
        """Set the workers of a started job, between its bounds and with room for new ones."""
        held = self._held[job.job_id]
        used_gpus = (workers - held.workers) * job.gpus_per_worker
        self._idle_gpus[held.flexible_pool] -= used_gpus
        self._flexible_gpus[held.flexible_pool] += used_gpus
        held.workers = workers

    def grow(self, job: JobDemand, workers: int) -> int:
        """Add up to so many workers to a started job, as far as its bound and the idle GPUs allow.

        Returns:
            Number of workers added.
        """
        held = self._held[job.job_id]
        room_workers = self.idle_gpus(held.flexible_pool) // job.gpus_per_worker
        more = min(workers, room_workers, job.most_workers - held.workers)
        self.resize(job, held.workers + more)
        return more

    def speed(self, job: JobDemand, workers: int) -> float:
        """Return the speed of a started job with so many workers, over that of one worker."""
        held = self._held[job.job_id]
        return speed_with(job, workers, held.pool, held.flexible_pool)

    def grants(self) -> list[WorkerGrant]:
        """Return the grants of the jobs whose workers change, in the order of their arrival."""
        changed = [held for held in self._held.values() if held.is_changed]
        changed.sort(key=lambda held: held.job.arrival)
        return [WorkerGrant(held.job.job_id, held.workers, held.pool, held.flexible_pool) for held in changed]


def whole_gpus(gpus: float) -> int:
    """Return the whole GPUs in a sum of normalised ones."""
    return math.floor(gpus + ROUNDING_GPUS)


def flexible_pool_of(job: JobDemand) -> Pool:
    """Return the pool of a running job's flexible workers, present or future."""
    return job.flexible_pool or job.pools[0]


def speed_with(job: JobDemand, workers: int, pool: Pool, flexible_pool: Pool) -> float:
    """Return the speed of a job with so many workers, over one worker; slower if it spans both pools."""
    is_spanning = workers > job.min_workers and flexible_pool != pool
    return job.speedup[workers] * job.spanning_speed if is_spanning else job.speedup[workers]


def linear_speedup(max_workers: int) -> tuple[float, ...]:
    """Return a linear curve `JobDemand.speedup`: every worker adds the speed of the first (thesis, section
    3.5)."""
    return tuple(float(workers) for workers in range(max_workers + 1))
