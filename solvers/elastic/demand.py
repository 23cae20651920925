"""Questions to schemes of allocation, and their answers.

Jobs are allocated workers in two pools: the zone's own training servers, and servers on loan. All quantities
are in training GPUs: a loaned GPU counts as the part of one that it is as fast as (erratum L4).
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

Pool = Literal["training", "loaned"]


class Demand(NamedTuple):
    """A job that waits, or that may be resized."""

    job_id: str
    arrival: int
    """Rank by submission: smaller came earlier. No two jobs have the same."""
    min_workers: int
    """w_min."""
    max_workers: int
    """w_max."""
    gpus_per_worker: int
    remaining_work_s: float
    """Seconds that the rest of the job takes with one worker on a training server."""
    speedup: Sequence[float]
    """`speedup[w]` is the speed of w workers over that of one: `max_workers + 1` values, the first 0."""
    pools: tuple[Pool, ...]
    """Where it may run, preferred first. Of a running job, where its base demand is."""
    spans_pools: bool = False
    """Whether its flexible demand may be in another pool than its base demand."""
    comes_last: bool = False
    """Whether all other jobs come before it (heterogeneous jobs, thesis, section 3.6)."""
    spanning_speed: float = 1.0
    """Part of its speed that is left when it is in both pools."""
    workers: int = 0
    """Workers that it has now; 0 for a job that waits."""
    flexible_pool: Pool | None = None
    """Where its flexible workers are, if it has any."""
    room_workers: int | None = None
    """Scattered servers have no room for more workers than this; None where that is not known."""
    barred_pools: frozenset[Pool] = frozenset()
    """Scattered servers of these pools have no room for its base demand, however many GPUs idle."""

    @property
    def most_workers(self) -> int:
        """That it may be granted."""
        return self.max_workers if self.room_workers is None else min(self.max_workers, self.room_workers)

    @property
    def open_pools(self) -> tuple[Pool, ...]:
        """Where it may start in this round, preferred first."""
        if not self.barred_pools:
            return self.pools
        return tuple(pool for pool in self.pools if pool not in self.barred_pools)

    def remaining_s(self, workers: int) -> float:
        """Return how long the rest of the job takes with a number of workers, in seconds."""
        return self.remaining_work_s / self.speedup[workers]


class Grant(NamedTuple):
    """Workers of a job from now on. A job without one keeps what it has, or goes on waiting."""

    job_id: str
    workers: int
    """`min_workers` at least."""
    pool: Pool
    """Pool of the base demand."""
    flexible_pool: Pool
    """Pool of the workers beyond it."""


class Scheme(Protocol):
    """Scheme of allocating workers. Deterministic: ties go by `arrival`."""

    keeps_order: ClassVar[bool]
    """Whether who finds no room on the servers holds up those that came later. Jobs are then placed in the
    order of their arrival, else in that of decreasing sizes, of which more fit."""

    gives_turns: ClassVar[bool]
    """Whether a job that waits may be overtaken for ever, unless it comes first at last."""

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
            running: jobs whose workers beyond the base demand may be taken or moved, in the same order.
            free_gpus: idle GPUs of each pool, in training GPUs; those of flexible workers are not among them.
            trial: how many decisions of this round found no room on the servers before this one. A scheme
                that bounds the work of a round divides it among the trials.

        Returns:
            Grants to waiting jobs that start and to running jobs that are resized, which fit into the idle
            GPUs and those that other grants give up.
        """
