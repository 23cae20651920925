"""Pollux (OSDI '21), as the thesis adapts it: the allocation of the highest goodput, by a genetic search."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from solvers.common.genetic import Options, search
from solvers.compiled import Ints
from solvers.elastic.demand import POOLS, Allocation, JobDemand, Pool, WorkerGrant, flexible_pool_of

WAITING_SPEEDUP = 0.1
"""Speedup of a waiting job in the harmonic mean, which would be zero with any speedup of zero."""

MOST_JOBS = 600
"""Most jobs of one search: half running and half waiting, or more of one kind if the other has fewer."""
MOST_OPTIONS = 20_000
"""Most options of all jobs in one search, divided in the same way; building one takes about 0.1 us."""
MOST_GENES = 16_000_000
"""Most genes that all searches of a round draw, one per job of each choice. One takes about 5 ns."""


@dataclass(frozen=True)
class Pollux:
    """Allocation that maximises the harmonic mean of speedups: each job's goodput over that with its fair
    share.

    A job's goodput is its `JobDemand.speedup`, so that curve states whether it tunes its batch.
    A fair share is 1/J of the GPUs that J jobs have or may get, within the job's bounds. As the thesis adapts
    it, no running job gets less than its base demand, and there are 250 generations where Pollux has 100, too
    few for a large cluster (section 3.7.4).

    The work of a round is bounded. A search has at most `MOST_JOBS` jobs and `MOST_OPTIONS` options: of the
    jobs that have a choice, those that arrived first. The others keep their workers. The first search of a
    round draws at most half of `MOST_GENES`, and each further one half of the one before. So a search with
    many jobs has fewer than 250 generations (the first one with more than 318 jobs).

    Three points differ from Pollux. A job has workers in a pool and not on nodes. The mean is then a sum over
    jobs that a dynamic program could maximise; the search is kept because it characterises Pollux. The
    population of the last round is not kept: a search starts from the present allocation, so a round is a
    function of its arguments and the seed. A demand has neither a job's age nor its restarts. So the cost of
    a restart is compared with the rest T of its running time: if its workers change, its speedup is
    multiplied by T / (T + `restart_s`).
    """

    keeps_order: ClassVar[bool] = False
    gives_turns: ClassVar[bool] = False

    seed: int
    generations: int = 250
    population: int = 100
    restart_s: float = 30.0

    def allocate(
        self,
        waiting: Sequence[JobDemand],
        running: Sequence[JobDemand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,
    ) -> list[WorkerGrant]:
        """See `Scheme`."""
        waiting = [job for job in waiting if job.open_pools]
        allocation = Allocation(running, free_gpus)
        capacity_gpus = {pool: allocation.idle_gpus(pool) + allocation.flexible_gpus(pool) for pool in POOLS}
        fair_gpus = _fair_gpus(waiting, running, capacity_gpus)
        menus = _examined(running, waiting, capacity_gpus)
        if not menus:
            return []
        left_out = {job.job_id: job for job in running}
        for menu in menus:
            left_out.pop(menu.job.job_id, None)
        for job in left_out.values():
            flexible_workers = job.workers - job.min_workers
            capacity_gpus[flexible_pool_of(job)] -= flexible_workers * job.gpus_per_worker
        options, workers = self._options(menus, fair_gpus)
        capacity = np.array([capacity_gpus[pool] for pool in POOLS], np.int64)
        chosen = _best(options)
        if not _fit(options, chosen, capacity):
            chosen = self._search(menus, options, capacity, trial)
        for menu, option in zip(menus, chosen, strict=True):
            if workers[option] > 0:
                if menu.job.workers == 0:
                    allocation.start(menu.job, POOLS[options.pools[option]])
                allocation.resize(menu.job, int(workers[option]))
        return allocation.grants()

    def generations_of(self, jobs: int, trial: int) -> int:
        """Return the number of generations of a search over so many jobs."""
        # The first population is drawn like a generation.
        most = (MOST_GENES >> (trial + 1)) // (self.population * jobs) - 1
        return min(self.generations, max(most, 0))

    def _options(self, menus: Sequence["_Menu"], fair_gpus: float) -> tuple[Options, Ints]:
        """Return the options of the search, and the workers of each, (options,)."""
        jobs = [menu.job for menu in menus]
        sections = [section for menu in menus for section in menu.sections]
        speedups: list[float] = []
        for menu in menus:
            for section in menu.sections:
                speedups += menu.job.speedup[section.least : section.most + 1]
        of_sections = np.array([section.most - section.least + 1 for section in sections], np.int64)
        section_starts = np.cumsum(of_sections) - of_sections
        siblings = np.repeat(section_starts, of_sections)
        least = np.array([section.least for section in sections], np.int64)
        pools = np.array([section.pool for section in sections], np.int64)
        workers = np.repeat(least, of_sections) + np.arange(siblings.size) - siblings
        of_jobs = np.array([menu.options for menu in menus], np.int64)

        present = np.repeat([job.workers for job in jobs], of_jobs)
        given = np.repeat([job.min_workers if job.workers else 0 for job in jobs], of_jobs)
        spanning = np.repeat([_spanning_speed(job) for job in jobs], of_jobs)
        speed = np.array(speedups) * np.where(workers > given, spanning, 1.0)
        restarts = (present > 0) & (workers != present)
        work_s = np.repeat([float(job.remaining_work_s) for job in jobs], of_jobs)[restarts]
        rest_s = work_s / speed[restarts]
        kept = np.zeros(rest_s.size)
        np.divide(rest_s, rest_s + self.restart_s, out=kept, where=rest_s > 0)
        speed[restarts] *= kept
        fair_speed = np.repeat([_fair_speed(job, fair_gpus) for job in jobs], of_jobs)
        options = Options(
            starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(of_jobs))),
            pools=np.repeat(pools, of_sections),
            gpus=(workers - given) * np.repeat([job.gpus_per_worker for job in jobs], of_jobs),
            siblings=siblings,
            values=-1.0 / np.maximum(speed / fair_speed, WAITING_SPEEDUP),
        )
        return options, workers

    def _search(self, menus: Sequence["_Menu"], options: Options, capacity_gpus: Ints, trial: int) -> Ints:
        """Return the option of each job, (jobs,)."""
        present = [menu.job.workers - menu.job.min_workers if menu.job.workers else 0 for menu in menus]
        start = options.starts[:-1] + np.array(present, np.int64)
        generations = self.generations_of(len(menus), trial)
        return search(options, capacity_gpus, start, generations, self.population, self._seed(menus))

    def _seed(self, menus: Sequence["_Menu"]) -> np.uint64:
        """Return the seed of this round. It depends on the jobs, their workers, and their remaining work."""
        digest = hashlib.blake2b(str(self.seed).encode(), digest_size=8)
        for menu in menus:
            job = menu.job
            digest.update(f"/{job.job_id}/{job.workers}/{float(job.remaining_work_s).hex()}".encode())
        return np.uint64(int.from_bytes(digest.digest()))


class _Section(NamedTuple):
    """Options of a job in one pool: each number of workers between two bounds."""

    pool: int
    """Pool of the GPUs that the round allocates: an index of `POOLS`."""
    least: int
    most: int


class _Menu(NamedTuple):
    """Allocations that a job may have after the round, the smallest first."""

    job: JobDemand
    sections: list[_Section]

    @property
    def options(self) -> int:
        return sum(section.most - section.least + 1 for section in self.sections)


def _examined(
    running: Sequence[JobDemand], waiting: Sequence[JobDemand], capacity_gpus: Mapping[Pool, int]
) -> list[_Menu]:
    """Return the menus of the jobs in the search: of those with a choice, the first of each kind."""
    jobs_left, options_left = MOST_JOBS, MOST_OPTIONS
    # Half for each kind; the other kind gets the unused part. So each kind is examined at most twice.
    waiting_menus = _within(waiting, capacity_gpus, MOST_JOBS // 2, MOST_OPTIONS // 2)
    jobs_left -= len(waiting_menus)
    options_left -= sum(menu.options for menu in waiting_menus)
    running_menus = _within(running, capacity_gpus, jobs_left, options_left)
    jobs_left = MOST_JOBS - len(running_menus)
    options_left = MOST_OPTIONS - sum(menu.options for menu in running_menus)
    return [*running_menus, *_within(waiting, capacity_gpus, jobs_left, options_left)]


def _within(
    jobs: Sequence[JobDemand], capacity_gpus: Mapping[Pool, int], most_jobs: int, most_options: int
) -> list[_Menu]:
    """Return the menus of the first jobs that have a choice, as many as are within both limits."""
    menus: list[_Menu] = []
    for job in jobs:
        if len(menus) == most_jobs:
            break
        menu = _menu(job, capacity_gpus)
        if menu.options < 2:
            continue
        most_options -= menu.options
        if most_options < 0:
            break
        menus.append(menu)
    return menus


def _menu(job: JobDemand, capacity_gpus: Mapping[Pool, int]) -> _Menu:
    """Return a job's options. A running job has its base demand and more; a waiting one has nothing, or in
    each of its open pools its base demand and more. No option exceeds a pool's capacity."""
    if job.workers:
        pool = flexible_pool_of(job)
        most = min(job.most_workers, job.min_workers + capacity_gpus[pool] // job.gpus_per_worker)
        return _Menu(job, [_Section(POOLS.index(pool), job.min_workers, most)])
    sections = [_Section(POOLS.index(job.pools[0]), 0, 0)]
    for pool in job.open_pools:
        most = min(job.most_workers, capacity_gpus[pool] // job.gpus_per_worker)
        if most >= job.min_workers:
            sections.append(_Section(POOLS.index(pool), job.min_workers, most))
    return _Menu(job, sections)


def _spanning_speed(job: JobDemand) -> float:
    """Return the fraction of a job's speed that remains with more workers than its base demand."""
    return job.spanning_speed if job.workers and flexible_pool_of(job) != job.pools[0] else 1.0


def _fair_speed(job: JobDemand, fair_gpus: float) -> float:
    """Return the speed of a job with its fair share, over one worker."""
    fair_workers = int(fair_gpus / job.gpus_per_worker)
    return job.speedup[min(max(fair_workers, job.min_workers), job.max_workers)]


def _fair_gpus(
    waiting: Sequence[JobDemand], running: Sequence[JobDemand], capacity_gpus: Mapping[Pool, int]
) -> float:
    """Return the GPUs per job if all jobs had equally many."""
    base_gpus = sum(job.min_workers * job.gpus_per_worker for job in running)
    return (sum(capacity_gpus.values()) + base_gpus) / max(len(waiting) + len(running), 1)


def _best(options: Options) -> Ints:
    """Return the most valuable option of each job, (jobs,); ties by their order."""
    firsts = options.starts[:-1]
    best = np.repeat(np.maximum.reduceat(options.values, firsts), np.diff(options.starts))
    places = np.flatnonzero(options.values == best)
    return places[np.searchsorted(places, firsts)]


def _fit(options: Options, chosen: Ints, capacity_gpus: Ints) -> bool:
    """Return whether the options fit into the capacities of all pools."""
    chosen_gpus = np.zeros_like(capacity_gpus)
    np.add.at(chosen_gpus, options.pools[chosen], options.gpus[chosen])
    return bool(np.all(chosen_gpus <= capacity_gpus))
