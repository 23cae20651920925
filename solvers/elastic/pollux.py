"""Pollux (OSDI '21), as the thesis adapts it: the allocation of the highest goodput, by a genetic search."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from solvers.common.genetic import Options, search
from solvers.elastic.allocation import POOLS, Allocation, flexible_pool_of, speed_with
from solvers.elastic.demand import Demand, Grant, Pool

WAITING_SPEEDUP = 0.1
"""What a job that waits counts as in the harmonic mean, which would be zero with any that has nothing."""

Term = Callable[[float], float]
"""What a job's speedup adds to a sum that is the higher, the higher a generalised mean of all speedups is."""


def harmonic_term(speedup: float) -> float:
    """Of the generalised mean with exponent -1, with which Pollux was evaluated."""
    return -1.0 / max(speedup, WAITING_SPEEDUP)


def arithmetic_term(speedup: float) -> float:
    """Of the generalised mean with exponent 1: goodput alone, whoever waits for it."""
    return speedup


@dataclass(frozen=True)
class Pollux:
    """Maximises the mean of speedups, each job's goodput over that with its fair share of the cluster.

    A job's goodput is its `Demand.speedup`, so whether it tunes its batch is told by that curve (see
    `goodput`). A fair share is 1/J of the GPUs that J jobs have or may get, within the job's bounds. As the
    thesis adapts it, no running job gets less than its base demand, and there are 250 generations where
    Pollux has 100, too few for a large cluster (section 3.7.4).

    Three things differ from Pollux. A job has workers in a pool and not on nodes, so that its mean is a sum
    over jobs, of which a dynamic program would find the best; the search is kept, since it is what Pollux is
    known by. The population of the last round is not kept: a search starts from the present allocation, so a
    round is a function of its arguments and the seed. And as a demand tells neither a job's age nor its
    restarts, the cost of a restart is weighed against the rest of its running time: with workers that differ
    from the present ones, a job's speedup counts as T / (T + `restart_s`) of itself, where T is that rest.
    """

    keeps_order: ClassVar[bool] = False
    gives_turns: ClassVar[bool] = False

    seed: int
    generations: int = 250
    population: int = 100
    term: Term = harmonic_term
    restart_s: float = 30.0

    def allocate(
        self, waiting: Sequence[Demand], running: Sequence[Demand], free_gpus: Mapping[Pool, float]
    ) -> list[Grant]:
        """See `Scheme`."""
        waiting = [job for job in waiting if job.open_pools]
        allocation = Allocation(running, free_gpus)
        capacity_gpus = {pool: allocation.idle_gpus(pool) + allocation.flexible_gpus(pool) for pool in POOLS}
        fair_gpus = _fair_gpus(waiting, running, capacity_gpus)
        choices = [self._choice(job, capacity_gpus, fair_gpus) for job in (*running, *waiting)]
        open_choices = [choice for choice in choices if len(choice.outcomes) > 1]
        taken = [choice.best for choice in open_choices]
        if not _fit(open_choices, taken, capacity_gpus):
            taken = self._search(open_choices, capacity_gpus)
        for choice, index in zip(open_choices, taken, strict=True):
            outcome = choice.outcomes[index]
            if outcome.workers > 0:
                if choice.job.workers == 0:
                    allocation.start(choice.job, outcome.pool)
                allocation.resize(choice.job, outcome.workers)
        return allocation.grants()

    def _choice(self, job: Demand, capacity_gpus: Mapping[Pool, int], fair_gpus: float) -> "_Choice":
        outcomes = _running_outcomes(job) if job.workers else _waiting_outcomes(job)
        possible = [outcome for outcome in outcomes if outcome.gpus <= capacity_gpus[outcome.flexible_pool]]
        fair_workers = int(fair_gpus / job.gpus_per_worker)
        fair_speed = job.speedup[min(max(fair_workers, job.min_workers), job.max_workers)]
        values = [self.term(self._speed(job, outcome) / fair_speed) for outcome in possible]
        return _Choice(job, possible, values)

    def _speed(self, job: Demand, outcome: "_Outcome") -> float:
        """Over that of one worker, less what a restart costs."""
        speed = speed_with(job, outcome.workers, outcome.pool, outcome.flexible_pool)
        if job.workers in (0, outcome.workers):
            return speed
        rest_s = job.remaining_work_s / speed
        return speed * (rest_s / (rest_s + self.restart_s)) if rest_s > 0 else 0.0

    def _search(self, choices: Sequence["_Choice"], capacity_gpus: Mapping[Pool, int]) -> list[int]:
        """The option that each job takes."""
        options = _options(choices)
        firsts = options.starts[:-1]
        present = np.array([choice.present for choice in choices], np.int64)
        capacity = np.array([capacity_gpus[pool] for pool in POOLS], np.int64)
        found = search(
            options, capacity, firsts + present, self.generations, self.population, self._seed(choices)
        )
        return [int(index) for index in found - firsts]

    def _seed(self, choices: Sequence["_Choice"]) -> np.uint64:
        """Of this round: it depends on who there is, on how many workers, and with how much left to do."""
        digest = hashlib.blake2b(str(self.seed).encode(), digest_size=8)
        for choice in choices:
            job = choice.job
            digest.update(f"/{job.job_id}/{job.workers}/{float(job.remaining_work_s).hex()}".encode())
        return np.uint64(int.from_bytes(digest.digest()))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a job may have after the round."""

    workers: int
    pool: Pool
    flexible_pool: Pool
    gpus: int
    """Of those that the round gives out, which are in the flexible pool."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The outcomes of a job, its least first, and what each is worth."""

    job: Demand
    outcomes: list[_Outcome]
    values: list[float]

    @property
    def best(self) -> int:
        """Which is worth the most; ties by their order."""
        return max(range(len(self.values)), key=lambda index: self.values[index])

    @property
    def present(self) -> int:
        """Which is what the job has now."""
        return next(i for i, outcome in enumerate(self.outcomes) if outcome.workers == self.job.workers)


def _waiting_outcomes(job: Demand) -> list[_Outcome]:
    """Nothing, or in each of its pools its base demand and more."""
    outcomes = [_Outcome(0, job.pools[0], job.pools[0], 0)]
    for pool in job.open_pools:
        for workers in range(job.min_workers, job.most_workers + 1):
            outcomes.append(_Outcome(workers, pool, pool, workers * job.gpus_per_worker))
    return outcomes


def _running_outcomes(job: Demand) -> list[_Outcome]:
    """Its base demand and more."""
    pool, flexible_pool = job.pools[0], flexible_pool_of(job)
    return [
        _Outcome(workers, pool, flexible_pool, (workers - job.min_workers) * job.gpus_per_worker)
        for workers in range(job.min_workers, job.most_workers + 1)
    ]


def _fair_gpus(
    waiting: Sequence[Demand], running: Sequence[Demand], capacity_gpus: Mapping[Pool, int]
) -> float:
    """What each job would have if all had the same."""
    base_gpus = sum(job.min_workers * job.gpus_per_worker for job in running)
    return (sum(capacity_gpus.values()) + base_gpus) / max(len(waiting) + len(running), 1)


def _fit(choices: Sequence[_Choice], taken: Sequence[int], capacity_gpus: Mapping[Pool, int]) -> bool:
    left_gpus = dict(capacity_gpus)
    for choice, index in zip(choices, taken, strict=True):
        outcome = choice.outcomes[index]
        left_gpus[outcome.flexible_pool] -= outcome.gpus
    return min(left_gpus.values()) >= 0


def _options(choices: Sequence[_Choice]) -> Options:
    """The choices as the search takes them."""
    starts = [0]
    pools: list[int] = []
    gpus: list[int] = []
    siblings: list[int] = []
    values: list[float] = []
    for choice in choices:
        seen: dict[tuple[bool, Pool], int] = {}
        for outcome, value in zip(choice.outcomes, choice.values, strict=True):
            siblings.append(seen.setdefault((outcome.workers > 0, outcome.pool), len(pools)))
            pools.append(POOLS.index(outcome.flexible_pool))
            gpus.append(outcome.gpus)
            values.append(value)
        starts.append(len(pools))
    return Options(
        starts=np.array(starts, np.int64),
        pools=np.array(pools, np.int64),
        gpus=np.array(gpus, np.int64),
        siblings=np.array(siblings, np.int64),
        values=np.array(values),
    )
