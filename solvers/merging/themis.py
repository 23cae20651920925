"""Themis (Mahajan et al., NSDI '20): leases of GPUs, auctioned among the jobs that sharing delays most."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import accumulate

import numpy as np

from solvers.compiled import Floats, Ints
from solvers.merging.scheme import Contender
from solvers.merging.sizes import by_arrival, fixed_size, grow_in_rounds, size_within

MOMENT_S = 1e-3
"""Least counted time, so that all have logarithms."""

_EXACT = Context(prec=25)
"""Context of logarithms: `decimal` rounds them correctly, so equally on every machine, unlike `math`."""


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
