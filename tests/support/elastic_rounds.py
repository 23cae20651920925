"""Rounds of elastic allocation: builders, a strategy, and sums of GPUs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from solvers.elastic.demand import JobDemand, Pool, WorkerGrant, linear_speedup


@dataclass(frozen=True)
class Round:
    """The arguments of `Scheme.allocate`."""

    waiting: tuple[JobDemand, ...]
    running: tuple[JobDemand, ...]
    free_gpus: Mapping[Pool, float]

    @property
    def jobs(self) -> tuple[JobDemand, ...]:
        return self.running + self.waiting


def demand(job_id: str, arrival: int, bounds: tuple[int, int] = (1, 1), **fields: Any) -> JobDemand:
    """A job from `bounds[0]` to `bounds[1]` workers of one GPU that scales linearly on training servers."""
    given: dict[str, Any] = {
        "gpus_per_worker": 1,
        "remaining_work_s": 1_000.0,
        "speedup": linear_speedup(bounds[1]),
        "pools": ("training",),
    }
    given.update(fields)
    return JobDemand(job_id=job_id, arrival=arrival, min_workers=bounds[0], max_workers=bounds[1], **given)


def training(gpus: float) -> dict[Pool, float]:
    """Return `gpus` idle training GPUs, and no loans."""
    return {"training": gpus, "loaned": 0.0}


@st.composite
def rounds(draw: st.DrawFn, max_jobs: int = 10) -> Round:
    """Draw jobs of all kinds. Running jobs hold GPUs besides the idle ones."""
    waiting, running = [], []
    for arrival in range(draw(st.integers(0, max_jobs))):
        is_running = draw(st.booleans())
        job = draw(_jobs(arrival, is_running))
        (running if is_running else waiting).append(job)
    free_gpus: dict[Pool, float] = {
        "training": float(draw(st.integers(0, 24))),
        "loaned": math.fsum([8 / 3] * draw(st.integers(0, 9))),
    }
    return Round(tuple(waiting), tuple(running), free_gpus)


def imperfect_speedup(min_workers: int, max_workers: int) -> tuple[float, ...]:
    """The curve on which every worker beyond the base demand adds four fifths (thesis, section 3.7.2)."""
    base = linear_speedup(min_workers)
    return base + tuple(min_workers + 0.8 * more for more in range(1, max_workers - min_workers + 1))


@st.composite
def _jobs(draw: st.DrawFn, arrival: int, is_running: bool) -> JobDemand:
    least = draw(st.integers(1, 4))
    most = least + draw(st.integers(0, 5))
    pools = draw(
        st.sampled_from([("training",), ("loaned", "training"), ("training", "loaned"), ("loaned",)])
    )
    spans_pools = draw(st.booleans())
    workers = draw(st.integers(least, most)) if is_running else 0
    # What runs has its base demand in one pool.
    pools = pools[:1] if is_running else pools
    flexible_pools: list[Pool] = ["training", "loaned"] if spans_pools else list(pools)
    return demand(
        f"j{arrival}",
        arrival,
        (least, most),
        gpus_per_worker=draw(st.sampled_from([1, 2, 3, 8])),
        remaining_work_s=draw(st.floats(1.0, 1e6)),
        speedup=draw(st.sampled_from([linear_speedup(most), imperfect_speedup(least, most)])),
        pools=pools,
        spans_pools=spans_pools,
        spanning_speed=0.7 if spans_pools else 1.0,
        workers=workers,
        flexible_pool=draw(st.sampled_from(flexible_pools)) if workers > least else None,
    )


def held_gpus(workers: int, pool: Pool, flexible_pool: Pool, job: JobDemand) -> dict[Pool, int]:
    """Return the GPUs that a job has in each pool."""
    held: dict[Pool, int] = {"training": 0, "loaned": 0}
    held[pool] += min(workers, job.min_workers) * job.gpus_per_worker
    held[flexible_pool] += max(workers - job.min_workers, 0) * job.gpus_per_worker
    return held


def used_gpus(jobs: Iterable[JobDemand], grants: Iterable[WorkerGrant]) -> dict[Pool, int]:
    """Return the idle GPUs that grants take in each pool, less those that they give up."""
    by_id = {job.job_id: job for job in jobs}
    taken: dict[Pool, int] = {"training": 0, "loaned": 0}
    for grant in grants:
        job = by_id[grant.job_id]
        before = held_gpus(job.workers, job.pools[0], job.flexible_pool or job.pools[0], job)
        after = held_gpus(grant.workers, grant.pool, grant.flexible_pool, job)
        for pool in taken:
            taken[pool] += after[pool] - before[pool]
    return taken


def granted_workers(grants: Sequence[WorkerGrant]) -> dict[str, int]:
    """Workers by job."""
    return {grant.job_id: grant.workers for grant in grants}
