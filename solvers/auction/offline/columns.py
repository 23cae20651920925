"""Schedule selection (P_1, Eq. 5) by column generation: a bound for larger instances, and near-optimal plans.

If the restricted master would be too large, prices come from the volume algorithm instead (Barahona and
Anbil 2000), limited to its dual side. Any prices give a bound.
"""

import math
import random
import time
from collections.abc import Sequence

import numpy as np

from solvers.auction.offline.instance import Instance
from solvers.auction.offline.relaxation import CandidateTask, Relaxation, Relaxed
from solvers.auction.offline.rounding import Rounding
from solvers.auction.offline.solution import OfflineSolution
from solvers.compiled import Floats

AIM = 0.3
"""Part by which a step aims to lower the bound."""
RECENT = 0.25
"""Weight of the newest subgradient in the average direction."""
PATIENCE = 5
"""Number of steps without success that shorten the next ones."""
SHORTENING, LENGTHENING = 0.6, 1.1
SHORTEST = 1e-4
"""Length of steps, as a part of the aim, below which the descent ends."""


def descend(
    relaxation: Relaxation,
    candidates: Sequence[CandidateTask],
    share: float,
    prices: Floats,
    length: float,
    enough_micros: float,
    deadline_s: float,
) -> Relaxed:
    """Return the best prices found for some of the tasks and a share of the room.

    Args:
        prices: (groups, VIEWS) prices of the start.
        length: length of the first steps, as a part of the full step to the aim.
        enough_micros: bound at which the search ends.
        deadline_s: time of the performance counter at which the search ends.
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


MOST_MASTER_TASKS = 1_500
"""Most tasks of the master; with more it takes too long, and prices are computed by descent only."""
SAMPLE_TASKS = 800
"""Tasks with which descent begins, with their share of the room: steps are cheaper."""
SAMPLE_SHARE, RELAXATION_SHARE = 0.15, 0.6
"""Parts of the time after which the descent uses all tasks, and after which plans are searched."""
FIRST_LENGTH, SECOND_LENGTH = 1.0, 0.1
"""Lengths of the first steps, see `descend`: those for all tasks begin near the best prices."""
FIRST_SHARE, FIRST_MOST_STALE = 0.1, 30
"""Limits of the first improvement of the greedy plans: part of the time, and consecutive neighbours without
an improvement. With plenty of room, the plans are so near the bound at prices of zero that no more is
needed."""
MOST_STALE_PER_TASK = 20
"""Consecutive neighbours per task without an improvement, after which the search for plans ends."""


def solve_by_columns(instance: Instance, time_limit_s: float, relative_gap: float) -> OfflineSolution:
    """Return plans for an instance, checked, and the bound by its relaxation.

    The bound holds whenever its search ends (Eq. 6 at any prices >= 0). The search ends as soon as the gap of
    the best plans found is proven. The solution states the remaining gap.

    Args:
        time_limit_s: total limit. Every task is placed once even if that exceeds the limit.
        relative_gap: (bound - welfare) / welfare at which to stop.
    """
    started_s = time.perf_counter()
    relaxation = Relaxation(instance)
    bound_micros = math.ceil(relaxation.unpriced.bound_micros)
    rounding = Rounding(relaxation)
    until_s = started_s + FIRST_SHARE * time_limit_s
    rounding.improve(bound_micros / (1.0 + relative_gap), FIRST_MOST_STALE, until_s)
    enough_micros = (1.0 + relative_gap) * rounding.value_micros
    if bound_micros > enough_micros:
        relaxed = _relaxed(relaxation, enough_micros, started_s, time_limit_s)
        bound_micros = min(bound_micros, math.ceil(relaxed.bound_micros))
        rounding.follow(relaxed)
        most_stale = MOST_STALE_PER_TASK * len(relaxation.candidates)
        rounding.improve(bound_micros / (1.0 + relative_gap), most_stale, started_s + time_limit_s)
    seconds = time.perf_counter() - started_s
    return OfflineSolution.of(instance, rounding.plans(), bound_micros, relative_gap, seconds)


def _relaxed(relaxation: Relaxation, enough_micros: float, started_s: float, time_limit_s: float) -> Relaxed:
    candidates, prices = relaxation.candidates, relaxation.no_prices()
    deadline_s = started_s + RELAXATION_SHARE * time_limit_s
    if len(candidates) <= MOST_MASTER_TASKS:
        return relaxation.generate(enough_micros, deadline_s)
    sample = random.Random(f"{len(candidates)}/sample").sample(candidates, SAMPLE_TASKS)
    until_s = started_s + SAMPLE_SHARE * time_limit_s
    share = SAMPLE_TASKS / len(candidates)
    prices = descend(relaxation, sample, share, prices, FIRST_LENGTH, 0.0, until_s).prices
    return descend(relaxation, candidates, 1.0, prices, SECOND_LENGTH, enough_micros, deadline_s)
