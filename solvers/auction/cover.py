"""The cheapest cover: at most one node class per slot, enough samples in all, at the least additive cost.

This is the schedule search for given prices per cell (problem 12 with fixed ceilings, erratum P3): a knapsack
cover with multiple choice. It is solved exactly by dynamic programming over the sums of samples that can
occur, and the Lagrangian bound of the covering constraint keeps the program to the few sums near the optimum.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.arrays import Floats, Ints
from solvers.compiled import kernel

NO_CHOICE = -1
_BISECTIONS = 60
"""Any rate gives a valid bound; so many halvings give one that is as tight as needed."""
_SLACK = 1e-9
"""Relative room that pruning leaves for rounding."""


class Sums(NamedTuple):
    """The sums of samples, short of the work, that a cover may pass through."""

    values: Ints
    """Ascending, from 0."""
    following: Ints
    """(classes, sums) index of each sum plus a slot of a class; the number of sums where that is enough."""


@kernel
def sums_below(samples: Ints, work_samples: int, slots: int) -> Sums:
    """The sums below `work_samples` of at most `slots` times each entry of `samples`."""
    sums = _reachable_sums(samples, work_samples, slots)
    return Sums(sums, _transitions(sums, samples))


@kernel
def _reachable_sums(samples: Ints, work_samples: int, slots: int) -> Ints:
    sums = np.zeros(1, np.int64)
    for index in range(samples.size):
        step = samples[index]
        repeated = False
        for other in range(index):
            repeated = repeated or samples[other] == step
        if step == 0 or repeated:
            continue
        most = min(slots, (work_samples - 1) // step)
        grown = np.empty(sums.size * (most + 1), np.int64)
        count = 0
        for base in sums:
            total = base
            for _ in range(most + 1):
                if total >= work_samples:
                    break
                grown[count] = total
                count += 1
                total += step
        sums = np.unique(grown[:count])
    return sums


@kernel
def _transitions(sums: Ints, samples: Ints) -> Ints:
    # A sum that takes more slots than there are is missing among `sums` and counts as enough: no cover gets
    # there.
    following = np.empty((samples.size, sums.size), np.int64)
    for index in range(samples.size):
        place = 0
        for state in range(sums.size):
            target = sums[state] + samples[index]
            while place < sums.size and sums[place] < target:
                place += 1
            found = place < sums.size and sums[place] == target
            following[index, state] = place if found else sums.size
    return following


@kernel
def _relaxed(costs: Floats, samples: Ints, rate: float) -> tuple[float, int]:
    """The cover relaxed at `rate` per sample: cells of negative reduced cost; what they cost and train."""
    total, taken = 0.0, 0
    for slot in range(costs.shape[0]):
        least, by = 0.0, -1
        for index in range(samples.size):
            reduced = costs[slot, index] - rate * samples[index]
            if reduced < least:
                least, by = reduced, index
        if by >= 0:
            total += costs[slot, by]
            taken += samples[by]
    return total, taken


@kernel
def _best_rate(costs: Floats, samples: Ints, work_samples: int) -> tuple[float, float]:
    """A rate per sample whose relaxation just covers the work, and the cost of that cover, if any."""
    # Above the dearest cell, a sample more is worth any cost: the relaxation takes all that each slot offers.
    low, high = 0.0, 1.0
    for cost in costs.flat:
        if cost < np.inf:
            high = max(high, cost + 1.0)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _relaxed(costs, samples, middle)[1] >= work_samples:
            high = middle
        else:
            low = middle
    total, taken = _relaxed(costs, samples, high)
    if taken < work_samples:
        return high, np.inf
    return high, total


@kernel
def cheapest_cover(
    costs: Floats, samples: Ints, sums: Sums, work_samples: int, cutoff: float
) -> tuple[float, Ints]:
    """The least sum of costs that covers the work, if below `cutoff`, and the class chosen in each slot.

    Args:
        costs: (slots, classes), infinite where a class cannot be chosen, never negative.
        samples: (classes,), zero only where all costs of the class are infinite.
        sums: from `sums_below`.

    Returns:
        The cost, infinite if no cover is that cheap, and (slots,) classes or `NO_CHOICE`.
    """
    slots, classes = costs.shape
    chosen = np.full(slots, NO_CHOICE, np.int64)
    rate, incumbent = _best_rate(costs, samples, work_samples)
    if incumbent == np.inf:
        return np.inf, chosen
    # Relative to the amounts that are added up: they may be far larger than what is left of them.
    slack = _SLACK * (1.0 + incumbent + rate * work_samples)
    limit = min(incumbent, cutoff) + slack
    saving = _savings(costs, samples, rate)
    if saving[0] + rate * work_samples > limit:
        return np.inf, chosen
    enough = sums.values.size
    best = np.full(enough + 1, np.inf)
    best[0] = 0.0
    came_from = np.full((slots, enough + 1), -1, np.int32)
    came_by = np.zeros((slots, enough + 1), np.int8)
    lowest, highest = 0, 0
    for slot in range(slots):
        # From the largest sum down, so that each slot is used once: a step only leads to larger sums.
        above = highest
        for state in range(highest, lowest - 1, -1):
            so_far = best[state]
            if so_far == np.inf:
                continue
            for index in range(classes):
                if costs[slot, index] == np.inf:
                    continue
                target = sums.following[index, state]
                cost = so_far + costs[slot, index]
                if cost >= best[target]:
                    continue
                missing = work_samples - sums.values[target] if target < enough else 0
                if cost + rate * missing + (saving[slot + 1] if missing else 0.0) > limit:
                    continue
                best[target] = cost
                came_from[slot, target] = state
                came_by[slot, target] = index
                if target < enough:
                    above = max(above, target)
                else:
                    limit = min(limit, cost + slack)
            if so_far + rate * (work_samples - sums.values[state]) + saving[slot + 1] > limit:
                best[state] = np.inf
        highest = above
        while lowest < highest and best[lowest] == np.inf:
            lowest += 1
    if best[enough] >= cutoff:
        return np.inf, chosen
    if best[enough] < np.inf:
        _trace_back(came_from, came_by, chosen)
    return float(best[enough]), chosen


@kernel
def _savings(costs: Floats, samples: Ints, rate: float) -> Floats:
    """(slots + 1,) what the slots from each on can save at best, at this rate."""
    slots, classes = costs.shape
    saving = np.zeros(slots + 1)
    for slot in range(slots - 1, -1, -1):
        least = 0.0
        for index in range(classes):
            least = min(least, costs[slot, index] - rate * samples[index])
        saving[slot] = saving[slot + 1] + least
    return saving


@kernel
def _trace_back(came_from: NDArray[np.int32], came_by: NDArray[np.int8], chosen: Ints) -> None:
    """Write down the classes that led to the last state."""
    state = came_from.shape[1] - 1
    for slot in range(chosen.size - 1, -1, -1):
        if came_from[slot, state] >= 0:
            chosen[slot] = came_by[slot, state]
            state = came_from[slot, state]
