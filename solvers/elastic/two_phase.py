"""Two-phase allocation (thesis, section 3.5.2): base demands shortest job first, then flexible demands by a
knapsack.
"""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import ClassVar

from solvers.elastic.demand import POOLS, JobDemand, Pool, WorkerGrant, whole_gpus
from solvers.elastic.knapsack import MOST_CELLS, ItemGroup, best_choice

MOST_STEPS = 50_000_000
"""Most items x capacity of one knapsack: a quarter of a second, however many jobs have wide ranges."""
MOST_ITEMS = 2**17
"""Most items of one knapsack whose time does not depend on the capacity."""


class TwoPhase:
    """Scheme of the thesis. It is a pure function of its arguments.

    Phase 1 starts waiting jobs with their base demand, in the order of their running time with `max_workers`,
    then of their arrival; a job that does not fit is skipped. Idle GPUs and those of flexible workers are
    available, so a running job keeps only its base demand. Unlike in the thesis, a job that would start on
    loaned servers starts on training servers if their idle GPUs allow it the same number of workers. A job
    stays in the pool where it starts, and on loaned servers it would lose workers to reclaims.

    Phase 2 allocates the rest of each pool to the flexible demand of jobs that run or start there, by one
    knapsack per pool: a group per job, an item per number of extra workers. The value of an item is its
    saving in the job's running time with `min_workers` (erratum L3). Of equal choices, the one of fewer GPUs
    is taken, then the one with more workers for earlier jobs.

    In each phase, heterogeneous jobs come after all others (section 3.6). The flexible demand of a job that
    may span pools goes to loaned servers if there is room for any of it, otherwise to training servers.
    Beyond the thesis, it leaves its workers on training servers only for more on loaned ones. In the end,
    such jobs change, by arrival, to the pool whose idle GPUs make them faster.

    Capacity is in whole training GPUs: idle loaned GPUs, which are fractions of them (erratum L4), are
    rounded down.
    """

    keeps_order: ClassVar[bool] = False
    gives_turns: ClassVar[bool] = True

    def __init__(self, scaling_pause_s: float = 0.0) -> None:
        """
        Args:
            scaling_pause_s: cost of a change of workers for a running job. The knapsack subtracts it from the
                gain, so that no job is resized for less; the thesis has none.

        Raises:
            ValueError: the pause is negative or not finite.
        """
        if not 0 <= scaling_pause_s < math.inf:
            raise ValueError(f"scaling_pause_s is {scaling_pause_s}, must be finite and not negative")
        self._scaling_pause_s = scaling_pause_s

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[WorkerGrant]:
        """Decide one round. Grants to running jobs come first, in their order, then those to starting jobs,
        in the order of phase 1.
        """
        left = _capacity(running, free_gpus)
        started = _decline_loans(_start(waiting, left), left, free_gpus)
        jobs = [(demand, demand.pools[0]) for demand in running] + started
        by_arrival = sorted(jobs, key=lambda job: job[0].arrival)
        extra = self._scale([job for job in by_arrival if not job[0].comes_last], left)
        extra |= self._scale([job for job in by_arrival if job[0].comes_last], left)
        self._settle([job for job in by_arrival if job[0].spans_pools], left, extra)
        grants = []
        for demand, pool in jobs:
            more, flexible_pool = extra.get(demand.job_id, (0, pool))
            workers = demand.min_workers + more
            if workers != demand.workers or (more and flexible_pool != demand.flexible_pool):
                grants.append(WorkerGrant(demand.job_id, workers, pool, flexible_pool))
        return grants

    def _scale(
        self, jobs: Sequence[tuple[JobDemand, Pool]], left: dict[Pool, int]
    ) -> dict[str, tuple[int, Pool]]:
        """Return the extra workers of jobs that get any, and their pools (phase 2); `left` is reduced."""
        scaled: dict[str, tuple[int, Pool]] = {}
        for flexible_pool in reversed(POOLS):
            here = [
                (demand, base_pool)
                for demand, base_pool in jobs
                if demand.most_workers > demand.min_workers
                and demand.job_id not in scaled
                and (base_pool == flexible_pool or demand.spans_pools)
            ]
            offers = _offers([demand for demand, _ in here], left[flexible_pool])
            groups = [
                self._group(demand, base_pool, flexible_pool, offered)
                for (demand, base_pool), offered in zip(here, offers, strict=True)
            ]
            choice = best_choice(groups, left[flexible_pool])
            for (demand, _), offered, item in zip(here, offers, choice, strict=True):
                if item is not None:
                    scaled[demand.job_id] = (offered[item], flexible_pool)
                    left[flexible_pool] -= offered[item] * demand.gpus_per_worker
        return scaled

    def _group(
        self, demand: JobDemand, base_pool: Pool, flexible_pool: Pool, offered: Sequence[int]
    ) -> ItemGroup:
        """Return a job's items in the knapsack of one pool (erratum L3), one per offered extra workers."""
        least, speedup = demand.min_workers, demand.speedup
        kept = demand.workers - least
        if flexible_pool == "loaned" and demand.flexible_pool == "training":
            # Without workers in this pool, the job continues unchanged.
            other_saved_s, other_pause_s = _saved_s(demand, base_pool, (kept, "training")), 0.0
        else:
            other_saved_s, other_pause_s = 0.0, self._scaling_pause_s if kept > 0 else 0.0
        least_s, work_s = demand.remaining_s(least), _work_s(demand, base_pool, flexible_pool)
        changing_s = (self._scaling_pause_s if demand.workers else 0.0) - other_pause_s
        # As `_saved_s` and `_pause_s`, for all items at once.
        values_s = [least_s - work_s / speedup[least + more] - other_saved_s - changing_s for more in offered]
        if demand.flexible_pool == flexible_pool and kept in offered:
            kept_s = least_s - work_s / speedup[demand.workers]
            values_s[offered.index(kept)] = kept_s - other_saved_s + other_pause_s
        return ItemGroup([more * demand.gpus_per_worker for more in offered], values_s)

    def _settle(
        self,
        jobs: Sequence[tuple[JobDemand, Pool]],
        left: dict[Pool, int],
        extra: dict[str, tuple[int, Pool]],
    ) -> None:
        """Move extra workers of jobs that may span pools to the other pool if its rest is better."""
        for demand, base_pool in jobs:
            granted = extra.get(demand.job_id, (0, base_pool))
            other: Pool = "training" if granted[1] == "loaned" else "loaned"
            most = min(demand.most_workers - demand.min_workers, left[other] // demand.gpus_per_worker)
            best, best_s = granted, _saved_s(demand, base_pool, granted) - self._pause_s(demand, granted)
            for more in (demand.workers - demand.min_workers, most):
                choice = (more, other)
                if not 0 < more <= most:
                    continue
                value_s = _saved_s(demand, base_pool, choice) - self._pause_s(demand, choice)
                if value_s > best_s:
                    best, best_s = choice, value_s
            if best != granted:
                left[granted[1]] += granted[0] * demand.gpus_per_worker
                left[other] -= best[0] * demand.gpus_per_worker
                extra[demand.job_id] = best

    def _pause_s(self, demand: JobDemand, extra: tuple[int, Pool]) -> float:
        """Return the pause of a job for a change to so many extra workers."""
        has_now = demand.workers - demand.min_workers
        is_kept = extra[0] == has_now and (has_now == 0 or demand.flexible_pool == extra[1])
        return 0.0 if has_now < 0 or is_kept else self._scaling_pause_s


def _saved_s(demand: JobDemand, base_pool: Pool, extra: tuple[int, Pool]) -> float:
    """Return the running time that extra workers in a pool save a job."""
    more, pool = extra
    work_s = _work_s(demand, base_pool, pool) if more else demand.remaining_work_s
    return demand.remaining_s(demand.min_workers) - work_s / demand.speedup[demand.min_workers + more]


def _work_s(demand: JobDemand, base_pool: Pool, flexible_pool: Pool) -> float:
    """Return the remaining time of a job at its speed with extra workers in a pool."""
    spans = flexible_pool != base_pool
    return demand.remaining_work_s / demand.spanning_speed if spans else demand.remaining_work_s


def _offers(demands: Sequence[JobDemand], capacity_gpus: int) -> list[Sequence[int]]:
    """Return the numbers of extra workers for each job: 1, 2, ... as far as they fit.

    The knapsack takes time of their number x capacity, unless all fit or there are too many jobs for an exact
    choice. Where that is too much, every second number is left out, or more, except the present one and the
    largest: the result is then near the best.
    """
    most = [
        min(demand.most_workers - demand.min_workers, capacity_gpus // demand.gpus_per_worker)
        for demand in demands
    ]
    all_gpus = sum(count * demand.gpus_per_worker for demand, count in zip(demands, most, strict=True))
    is_tabulated = all_gpus > capacity_gpus and len(demands) * (capacity_gpus + 1) <= MOST_CELLS
    steps_share = -(-sum(most) * capacity_gpus // MOST_STEPS) if is_tabulated else 1
    stride = max(steps_share, -(-sum(most) // MOST_ITEMS), 1)
    if stride == 1:
        return [range(1, count + 1) for count in most]
    return [
        sorted(
            {*range(stride, count, stride), count, min(max(demand.workers - demand.min_workers, 1), count)}
        )
        if count
        else []
        for demand, count in zip(demands, most, strict=True)
    ]


def _capacity(running: Sequence[JobDemand], free_gpus: Mapping[Pool, float]) -> dict[Pool, int]:
    """Return the whole training GPUs of each pool that are idle or of flexible workers."""
    held = dict.fromkeys(POOLS, 0)
    for demand in running:
        if demand.flexible_pool is not None:
            held[demand.flexible_pool] += (demand.workers - demand.min_workers) * demand.gpus_per_worker
    return {pool: whole_gpus(free_gpus.get(pool, 0.0) + held[pool]) for pool in POOLS}


def _start(waiting: Sequence[JobDemand], left: dict[Pool, int]) -> list[tuple[JobDemand, Pool]]:
    """Return the jobs that start, and their pools (phase 1); their base demand is subtracted from `left`."""
    # Stable sorts by one key each take half as long as one sort by tuples.
    open_pools = {demand.job_id: pools for demand in waiting if (pools := demand.open_pools)}
    order = sorted((demand for demand in waiting if demand.job_id in open_pools), key=attrgetter("arrival"))
    order.sort(key=lambda demand: demand.remaining_s(demand.max_workers))
    order.sort(key=attrgetter("comes_last"))
    started: list[tuple[JobDemand, Pool]] = []
    for demand in order:
        base_gpus = demand.min_workers * demand.gpus_per_worker
        for pool in open_pools[demand.job_id]:
            if base_gpus <= left[pool]:
                left[pool] -= base_gpus
                started.append((demand, pool))
                break
    return started


def _decline_loans(
    started: Sequence[tuple[JobDemand, Pool]], left: dict[Pool, int], free_gpus: Mapping[Pool, float]
) -> list[tuple[JobDemand, Pool]]:
    """Return the starting jobs, those on training servers that would have no more workers on loaned ones.

    Jobs that span pools are left where they are. Only idle GPUs that no base demand takes count.

    Args:
        started: jobs and their pools, in the order of phase 1.
        left: whole training GPUs of each pool besides all base demands; changed with the pools.
        free_gpus: idle GPUs of each pool, in training GPUs.
    """
    idle = {pool: whole_gpus(free_gpus.get(pool, 0.0)) for pool in POOLS}
    for demand, pool in started:
        idle[pool] -= demand.min_workers * demand.gpus_per_worker
    chosen: list[tuple[JobDemand, Pool]] = []
    for demand, pool in started:
        size, base_gpus = demand.gpus_per_worker, demand.min_workers * demand.gpus_per_worker
        if not demand.spans_pools and pool == "loaned" and "training" in demand.open_pools:
            workers = min((max(idle["loaned"], 0) + base_gpus) // size, demand.most_workers)
            if min(idle["training"] // size, demand.most_workers) >= workers:
                pool = "training"
                for counted in (left, idle):
                    counted["loaned"] += base_gpus
                    counted["training"] -= base_gpus
        more = min(max(idle[pool], 0) // size, demand.most_workers - demand.min_workers)
        idle[pool] -= more * size
        chosen.append((demand, pool))
    return chosen
