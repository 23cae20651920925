"""Themis (Mahajan et al., NSDI '20): GPUs on lease, auctioned among those that sharing has set back most."""

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
"""The least that a time counts as, so that there are logarithms of all."""

_EXACT = Context(prec=25)
"""`decimal` rounds logarithms correctly, and so alike on every machine, where `math` need not."""


@dataclass(frozen=True)
class Themis:
    """Finish-time fairness rho = T_shared / T_independent, kept low for whom it is highest.

    GPUs are leased. A lease ends when its job has held it for `lease_s`, or a multiple of that. The caller
    tells how long that was (`Contender.held_s`) and calls once per `interval_s`: leases that have ended since
    the last call are given back in this one, and a call in between, as at an arrival, finds the GPUs that are
    free. Jobs with a lease keep it.

    The others contend for all that is free, in an auction with partial allocation (section 3.3). Those that
    are worst off, a share of 1 - f of them, bid: for each of their sizes up to the one they asked for, the
    rho that they would end with. GPUs go where the product of all 1 / rho is highest, and each winner pays
    for what it takes from others with a part of its GPUs (hidden payment), so that nobody gains by a false
    bid. What is left goes to those that did not bid, the worst off first, one step each in turn, where Themis
    draws lots. What is left even then goes to the bidders, so that nothing stays idle.

    T_shared is the time since submission plus what is left with the size; with nothing, it is a lease more
    than with the fair share. T_independent is the time of all of it on 1/N of the GPUs, for N jobs.
    """

    lease_s: float = 600.0
    interval_s: float = 120.0
    fairness_knob: float = 0.8
    """f: the nearer to 1, the fewer bid, and the fairer and less efficient it is."""

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
        """Whether it has GPUs whose lease goes on: none has ended since the last call."""
        if job.gpus not in job.remaining_s:
            return False
        return job.held_s < self.lease_s or job.held_s % self.lease_s >= self.interval_s

    def bid(self, job: Contender, gpus: int, jobs: int, time_s: float) -> dict[int, float]:
        """By size, 0 included: its rho, if it has that from now on, among so many GPUs and jobs."""
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
    """What each bidder gets: of the sizes with the highest product of all 1 / rho, the part that it may keep.

    Of its GPUs a bidder keeps the share that the others' product of 1 / rho is of what it would be without
    the bidder: the more it takes from them, the less.

    Args:
        bids: for each bidder, rho by size, 0 included.
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
    """The sizes that there is room for, and for each how much it adds to the logarithm of the product of
    1 / rho over what nothing adds."""
    sizes = [size for size in sorted(bid) if size <= gpus]
    nothing = _log(bid[0])
    return np.array(sizes, np.int64), np.array([nothing - _log(bid[size]) for size in sizes])


def _joined(best: Floats, menu: tuple[Ints, Floats]) -> Floats:
    """(gpus + 1,) the most that bidders can add with so many GPUs, one more among them."""
    joined = np.full_like(best, -np.inf)
    for size, gain in zip(*menu, strict=True):
        np.maximum(joined[size:], best[: best.size - size] + gain, out=joined[size:])
    return joined


def _log(value: float) -> float:
    return float(Decimal(value).ln(_EXACT))


def _exp(value: float) -> float:
    return float(Decimal(value).exp(_EXACT))
