"""Pollux (Qiao et al., OSDI '21) without its batch tuning: the best mean of speedups, by a genetic search."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.common.genetic import Options, search
from solvers.merging.scheme import Contender
from solvers.merging.sizes import by_arrival, size_within

SPEEDUP_FLOOR = 1e-3
"""Addend of every speedup, as in Pollux's simulator: any speedup of 0 would make the harmonic mean 0."""


@dataclass(frozen=True)
class FixedBatchPollux:
    """Allocation that maximises the harmonic mean of speedups, each relative to the job's fair share.

    With a fixed batch (as in section 7.1 of the paper, footnote 4), a job's goodput is its throughput, the
    inverse of its total duration. A fair share is 1/J of the GPUs of J jobs, rounded up. A running job whose
    size changes counts less, by the share of its age that restarts have cost (REALLOC_FACTOR, section 4.2):
    (T - R d) / (T + d) with age T, R restarts and d seconds for each.

    Three points differ. Placement on nodes comes later. The mean is then a sum over jobs that a dynamic
    program could maximise; the search is kept because it characterises Pollux. The population of the last
    round is not kept: a search starts from the present allocation, so a round is a function of its arguments.
    And the seed of its random numbers is derived from them.
    """

    seed: int = 0
    generations: int = 100
    population: int = 100
    restart_s: float = 30.0

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        jobs = by_arrival(jobs)
        menus = [[0, *(size for size in job.remaining_s if size <= gpus)] for job in jobs]
        values = [
            self.values(job, menu, -(-gpus // len(jobs)), time_s)
            for job, menu in zip(jobs, menus, strict=True)
        ]
        sizes = [
            menu[max(range(len(menu)), key=worth.__getitem__)]
            for menu, worth in zip(menus, values, strict=True)
        ]
        if sum(sizes) > gpus:
            sizes = self._search(jobs, menus, values, gpus)
        return {job.job_id: size for job, size in zip(jobs, sizes, strict=True) if size > 0}

    def values(self, job: Contender, menu: Sequence[int], fair_gpus: float, time_s: float) -> list[float]:
        """Return the addend of each of these sizes to the negative sum of inverse speedups, with which the
        harmonic mean rises."""
        fair_s = job.total_s[size_within(job.total_s, fair_gpus)]
        age_s = time_s - job.submitted_s
        restarted = max(age_s - job.restarts * self.restart_s, 0.0) / (age_s + self.restart_s)
        speedups = [fair_s / job.total_s[size] if size > 0 else 0.0 for size in menu]
        return [
            -1.0 / (speedup * (1.0 if job.gpus in (0, size) else restarted) + SPEEDUP_FLOOR)
            for size, speedup in zip(menu, speedups, strict=True)
        ]

    def _search(
        self,
        jobs: Sequence[Contender],
        menus: Sequence[Sequence[int]],
        values: Sequence[Sequence[float]],
        gpus: int,
    ) -> list[int]:
        """Return the size of each job."""
        starts = np.cumsum([0] + [len(menu) for menu in menus], dtype=np.int64)
        options = Options(
            starts=starts,
            pools=np.zeros(starts[-1], np.int64),
            gpus=np.array([size for menu in menus for size in menu], np.int64),
            siblings=np.repeat(starts[:-1], np.diff(starts)),
            values=np.array([value for worth in values for value in worth]),
        )
        present = [
            menu.index(job.gpus) if job.gpus in menu else 0 for job, menu in zip(jobs, menus, strict=True)
        ]
        if sum(menu[index] for menu, index in zip(menus, present, strict=True)) > gpus:
            present = [0] * len(jobs)
        first = starts[:-1] + np.array(present, np.int64)
        seed = self._seed(jobs, gpus)
        found = search(options, np.array([gpus]), first, self.generations, self.population, seed)
        return [int(options.gpus[option]) for option in found]

    def _seed(self, jobs: Sequence[Contender], gpus: int) -> np.uint64:
        """Return the seed of this round, from the GPUs, and the sizes and remaining work of the jobs."""
        digest = hashlib.blake2b(f"{self.seed}/{gpus}".encode(), digest_size=8)
        for job in jobs:
            left_s = next(iter(job.remaining_s.values()))
            digest.update(f"/{job.arrival}/{job.gpus}/{float(left_s).hex()}".encode())
        return np.uint64(int.from_bytes(digest.digest()))
