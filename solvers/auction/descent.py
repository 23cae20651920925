"""Prices that make the bound small, by descent along averaged subgradients: where the master is too large.

The volume algorithm (Barahona and Anbil 2000), kept to its dual side. Whatever prices it ends with, they give
a bound.
"""

import time
from collections.abc import Sequence

import numpy as np

from solvers.arrays import Floats
from solvers.auction.relaxation import Candidate, Relaxation, Relaxed

AIM = 0.3
"""A step aims at a bound lower by this part."""
RECENT = 0.25
"""Weight of the newest subgradient in the average that is followed."""
PATIENCE = 5
"""So many steps without success shorten those that follow."""
SHORTENING, LENGTHENING = 0.6, 1.1
SHORTEST = 1e-4
"""Steps shorter than this part of the aim end the descent."""


def descend(
    relaxation: Relaxation,
    candidates: Sequence[Candidate],
    share: float,
    prices: Floats,
    length: float,
    enough_micros: float,
    deadline_s: float,
) -> Relaxed:
    """The best prices found for some of the tasks and a share of the room.

    Args:
        prices: (groups, VIEWS) where to begin.
        length: of the first steps, as a part of the full step to the aim.
        enough_micros: at a bound no higher than this there is nothing more to prove.
        deadline_s: of the performance counter.
    """
    at = relaxation.priced(candidates, share, prices)
    best_micros = at.bound_micros
    average = relaxation.surplus(at.columns, share)
    failures = 0
    while length > SHORTEST and best_micros > enough_micros and time.perf_counter() < deadline_s:
        move = np.where((prices <= 0) & (average < 0), 0.0, average)
        square = float((move * move).sum())
        if square == 0.0:
            break
        tried = np.maximum(prices + length * AIM * best_micros / square * move, 0.0)
        at = relaxation.priced(candidates, share, tried)
        newest = relaxation.surplus(at.columns, share)
        if at.bound_micros < best_micros:
            best_micros, prices, failures = at.bound_micros, tried, 0
            if float((newest * average).sum()) > 0:
                length *= LENGTHENING
        else:
            failures += 1
            if failures == PATIENCE:
                length, failures = length * SHORTENING, 0
        average = RECENT * newest + (1.0 - RECENT) * average
    return Relaxed(best_micros, prices, [])
