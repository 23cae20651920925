"""Schemes to which merging is compared, but for Titan, which needs Pyomo (`titan`)."""

import hashlib
import heapq
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import accumulate

import numpy as np

from solvers.common.genetic import Options, search
from solvers.compiled import Floats, Ints
from solvers.merging.scheme_interface import (
    Contender,
    by_arrival,
    fixed_size,
    grow_in_rounds,
    serve_in_order,
    size_within,
)

_Step = tuple[float, int, Contender, tuple[int, ...]]
"""Step to a larger size: the negative saving per GPU, the arrival, the job, and its larger sizes."""

MOMENT_S = 1e-3
"""Least counted time, so that all have logarithms."""

_EXACT = Context(prec=25)
"""Context of logarithms: `decimal` rounds them correctly, so equally on every machine, unlike `math`."""

SPEEDUP_FLOOR = 1e-3
"""Addend of every speedup, as in Pollux's simulator: any speedup of 0 would make the harmonic mean 0."""


class ShortestRemainingTimeFirst:
    """Shortest remaining time first, each job at its requested size.

    A job that would end sooner preempts one that would end later, whatever the switch costs.
    """

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        order = sorted(jobs, key=lambda job: (job.remaining_s[fixed_size(job, gpus)], job.arrival))
        return serve_in_order(order, gpus)


@dataclass(frozen=True)
class Tiresias:
    """Discretised two-dimensional least attained service (2D-LAS; section 3.2). It needs no durations of
    jobs.

    A job is less urgent, the more GPU-seconds it has attained. Queues by thresholds keep jobs with nearly
    equal service from alternating; the order in a queue is that of arrival. (Tiresias uses the order of first
    starts. Except for skipped jobs, it is the order of arrival.) A job that has waited `promote_knob` times
    its running time is promoted to the first queue.

    One point differs. Tiresias resets the times of a promoted job. Here a round is a function of its
    arguments, so they continue: a promoted job stays in the first queue until it has run its share, one
    second per `promote_knob` seconds of waiting.
    """

    thresholds_gpu_s: tuple[float, ...] = (3600.0,)
    """Thresholds between queues, ascending. Two queues are enough (section 5.4); one GPU-hour is the
    threshold of the simulator with the published values used for comparison."""
    promote_knob: float = math.inf
    """PROMOTEKNOB; with an infinite one, as in that simulator, no job is promoted."""

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        return serve_in_order(sorted(jobs, key=lambda job: (self.queue_of(job), job.arrival)), gpus)

    def queue_of(self, job: Contender) -> int:
        """Return the queue of a job; 0 is served first."""
        if job.running_s > 0 and job.waited_s >= self.promote_knob * job.running_s:
            return 0
        return bisect_right(self.thresholds_gpu_s, job.attained_gpu_s)


class Optimus:
    """Allocation of the smallest size to every job, then of the next size to the job that gains most (section
    4.1).

    Every round allocates all GPUs again. With fewer GPUs than jobs, the earliest are served, since Optimus
    does not define which wait. The gain of a step to the next size is the saved remaining time per GPU. A job
    whose next step does not fit keeps its size.
    """

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        granted: dict[str, int] = {}
        left = gpus
        steps: list[_Step] = []
        for job in by_arrival(jobs):
            smallest, *larger = job.remaining_s
            if smallest <= left:
                granted[job.job_id] = smallest
                left -= smallest
                if larger:
                    steps.append(_step(job, smallest, tuple(larger)))
        heapq.heapify(steps)
        while steps:
            _, _, job, (size, *larger) = heapq.heappop(steps)
            more = size - granted[job.job_id]
            if more <= left:
                granted[job.job_id] = size
                left -= more
                if larger:
                    heapq.heappush(steps, _step(job, size, tuple(larger)))
        return granted


def _step(job: Contender, size: int, larger: tuple[int, ...]) -> _Step:
    """Return the step to the next size. Steps sort the best first; ties by arrival."""
    saved_s = job.remaining_s[size] - job.remaining_s[larger[0]]
    return -saved_s / (larger[0] - size), job.arrival, job, larger


@dataclass(frozen=True)
class Themis:
    """Allocation that minimises the largest finish-time fairness rho = T_shared / T_independent.

    GPUs are leased. A lease ends when its job has held it for `lease_s`, or a multiple of that. The caller
    gives that time (`Contender.held_s`) and calls once per `interval_s`. Leases that have ended since the
    last call are released in this one; a call in between, such as at an arrival, allocates the free GPUs.
    Jobs with a lease keep it.

    The others contend for all free GPUs, in an auction with partial allocation (section 3.3). A share of 1 -
    f of them, those with the highest rho, bid: for each of their sizes up to the requested one, the rho that
    they would end with. The allocation maximises the product of all 1 / rho, and each winner pays for the
    loss of the others with a part of its GPUs (hidden payment), so that no job gains by a false bid. The rest
    goes to jobs that did not bid, the highest rho first, one step each in turn, where Themis draws lots. The
    rest of that goes to the bidders, so that no GPU stays idle.

    T_shared is the time since submission plus the remaining time at the size; without GPUs, it is a lease
    more than with the fair share. T_independent is the duration of the whole job on 1/N of the GPUs, for N
    jobs.
    """

    lease_s: float = 600.0
    interval_s: float = 120.0
    fairness_knob: float = 0.8
    """Knob f: nearer to 1, fewer jobs bid, and the allocation is fairer and less efficient."""

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        if gpus == 0:
            return {}
        leased = {job.job_id: job.gpus for job in jobs if self.is_leased(job)}
        if sum(leased.values()) > gpus:
            leased = {}
        left = gpus - sum(leased.values())
        bids = {job.job_id: self.bid(job, gpus, len(jobs), time_s) for job in jobs}
        contending = sorted(
            (job for job in jobs if job.job_id not in leased),
            key=lambda job: (-bids[job.job_id].get(job.gpus, bids[job.job_id][0]), job.arrival),
        )
        bidding = math.ceil((1 - self.fairness_knob) * len(contending))
        bidders = by_arrival(contending[:bidding])
        won = partial_allocation([bids[job.job_id] for job in bidders], left)
        granted = {job.job_id: size for job, size in zip(bidders, won, strict=True) if size > 0}
        left -= sum(won)
        for others in (contending[bidding:], contending[:bidding]):
            left = grow_in_rounds(granted, [(job, fixed_size(job, gpus)) for job in others], left)
        return leased | granted

    def is_leased(self, job: Contender) -> bool:
        """Return whether a job has GPUs on a lease that has not ended since the last call."""
        if job.gpus not in job.remaining_s:
            return False
        return job.held_s < self.lease_s or job.held_s % self.lease_s >= self.interval_s

    def bid(self, job: Contender, gpus: int, jobs: int, time_s: float) -> dict[int, float]:
        """Return the rho of a job by size, 0 included, if it keeps that size, among so many GPUs and jobs."""
        fair_gpus = gpus / jobs
        most = fixed_size(job, gpus)
        since_s = time_s - job.submitted_s
        fair = size_within(job.total_s, min(fair_gpus, job.asked_gpus))
        independent_s = max(job.total_s[fair] * max(fair / fair_gpus, 1.0), MOMENT_S)
        shared_s = {0: since_s + self.lease_s + job.remaining_s[fair]}
        for size, remaining_s in job.remaining_s.items():
            if size <= max(most, job.gpus):
                shared_s[size] = since_s + remaining_s
        return {size: max(each_s, MOMENT_S) / independent_s for size, each_s in shared_s.items()}


def partial_allocation(bids: Sequence[Mapping[int, float]], gpus: int) -> list[int]:
    """Return the GPUs of each bidder: its part of the sizes with the highest product of all 1 / rho.

    A bidder keeps a share of its GPUs: the others' product of 1 / rho over that product without the bidder.
    The more it takes from them, the less it keeps.

    Args:
        bids: rho by size, 0 included, of each bidder.
    """
    menus = [_menu(bid, gpus) for bid in bids]
    best_first = list(accumulate(menus, _joined, initial=np.zeros(gpus + 1)))
    best_last = list(accumulate(reversed(menus), _joined, initial=np.zeros(gpus + 1)))
    room, kept = gpus, [0] * len(bids)
    total = float(best_first[-1][gpus])
    for index in reversed(range(len(menus))):
        sizes, gains = menus[index]
        worth = best_first[index][room - sizes[sizes <= room]] + gains[sizes <= room]
        chosen = int(np.argmax(worth))
        others = float(np.max(best_first[index] + best_last[len(menus) - 1 - index][::-1]))
        share = min(_exp(total - float(gains[chosen]) - others), 1.0)
        size = int(sizes[chosen])
        room -= size
        if size > 0:
            allowed = math.floor(share * size * (1 + 1e-9))
            kept[index] = max(int(each) for each in sizes if each <= allowed)
    return kept


def _menu(bid: Mapping[int, float], gpus: int) -> tuple[Ints, Floats]:
    """Return the sizes that fit, and the addend of each to the logarithm of the product of 1 / rho, relative
    to size 0."""
    sizes = [size for size in sorted(bid) if size <= gpus]
    nothing = _log(bid[0])
    return np.array(sizes, np.int64), np.array([nothing - _log(bid[size]) for size in sizes])


def _joined(best: Floats, menu: tuple[Ints, Floats]) -> Floats:
    """Return the largest sum of bidders with each number of GPUs, after adding one bidder, (gpus + 1,)."""
    joined = np.full_like(best, -np.inf)
    for size, gain in zip(*menu, strict=True):
        np.maximum(joined[size:], best[: best.size - size] + gain, out=joined[size:])
    return joined


def _log(value: float) -> float:
    return float(Decimal(value).ln(_EXACT))


def _exp(value: float) -> float:
    return float(Decimal(value).exp(_EXACT))


@dataclass(frozen=True)
class FixedBatchPollux:
    """Allocation that maximises the harmonic mean of speedups, each relative to the job's fair share.

    With a fixed batch (as in section 7.1 of the paper, footnote 4), a job's goodput is its throughput, the
    inverse of its total duration. A fair share is 1/J of the GPUs of J jobs, rounded up. If its size changes,
    a running job counts less, by the share of its age that restarts have cost (REALLOC_FACTOR, section 4.2):
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
