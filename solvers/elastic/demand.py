"""Demands of jobs, and the grants by which schemes of allocation answer them.

Jobs are allocated workers in two pools: the zone's own training servers, and servers on loan. All quantities
are in training GPUs: a loaned GPU counts as the fraction of one that equals its speed (erratum L4).
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

Pool = Literal["training", "loaned"]


class Demand(NamedTuple):
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


class Grant(NamedTuple):
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
        waiting: Sequence[Demand],
        running: Sequence[Demand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,
    ) -> list[Grant]:
        """Decide one round.

        Args:
            waiting: jobs without workers, in the order of their arrival.
            running: jobs whose workers beyond the base demand may be removed or moved, in the same order.
            free_gpus: idle GPUs of each pool, in training GPUs, without those of flexible workers.
            trial: number of earlier decisions of this round that found no room on the servers. A scheme that
                bounds the work of a round divides it among the trials.

        Returns:
            Grants to waiting jobs that start and to running jobs that are resized, which fit into the idle
            GPUs and those that other grants give up.
        """
