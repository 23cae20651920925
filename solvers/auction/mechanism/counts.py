"""Cover by counts: the number of slots of each speed, as if no two speeds competed for a slot.

Classes of equal speed count as one, represented in every slot by the cheapest of them. Each speed then takes
its own cheapest slots, so a cover is a number of slots per speed, and its cost a sum of convex functions of
these numbers. The cheapest numbers bound every cover from below, and with one speed they are the cheapest
cover. With more, a slot that two speeds use goes to one of them; if that costs nothing, the cover is the
cheapest too.
"""

from typing import NamedTuple

import numpy as np

from solvers.compiled import Floats, Ints, kernel

NO_CHOICE = -1
EQUAL = 1e-12
"""Relative difference below which two costs are equal, since sums are rounded."""


class Cover(NamedTuple):
    """Result of a search for the cheapest cover."""

    bound: float
    """Lower bound on the cost of all covers; infinite without a cover."""
    cost: float
    """Cost of the cover found; infinite without one. The cover is the cheapest if this equals the bound."""
    chosen: Ints
    """Class or `NO_CHOICE` in each slot, (slots,)."""
    steps: int


class _Offers(NamedTuple):
    """Slots of each speed from the cheapest to the dearest; arrays have shape (speeds, slots)."""

    length: Ints
    """Number of slots of each speed, (speeds,)."""
    slots: Ints
    classes: Ints
    """Cheapest class of that speed in the slot."""
    price: Floats
    sums: Floats
    """Cumulative sums of the prices, (speeds, slots + 1)."""


@kernel
def cover_by_counts(costs: Floats, order: Ints, samples: Ints, work_samples: int, limit_steps: int) -> Cover:
    """Return the cheapest cover by counts; its bound is looser if the search for counts reaches its limit.

    Args:
        costs: (slots, classes), infinite where a class cannot be chosen, never negative.
        order: (classes, slots) the slots of each class from the cheapest to the dearest.
        samples: (classes,), zero only where all costs of the class are infinite.
        limit_steps: most combinations of counts to examine.
    """
    slots, classes = costs.shape
    steps = slots * classes
    most, usable = 0, 0
    for slot in range(slots):
        fastest = 0
        for index in range(classes):
            if costs[slot, index] < np.inf:
                fastest = max(fastest, samples[index])
        most += fastest
        usable += fastest > 0
    chosen = np.full(slots, NO_CHOICE, np.int64)
    if most < work_samples:
        return Cover(np.inf, np.inf, chosen, steps)
    speeds = _speeds_of(samples)
    offers = _cheapest_slots(costs, order, samples, speeds, work_samples)
    bound, counts, tried = _least_counts(offers, speeds, work_samples, usable, limit_steps)
    cost = np.inf
    if counts[0] >= 0:
        cost = _cover_of_counts(offers, counts, False, chosen)
        if speeds.size > 1 and cost > bound * (1.0 + EQUAL):
            other = np.full(slots, NO_CHOICE, np.int64)
            other_cost = _cover_of_counts(offers, counts, True, other)
            if other_cost < cost:
                cost, chosen = other_cost, other
    return Cover(bound, cost, chosen, steps + tried)


@kernel
def _speeds_of(samples: Ints) -> Ints:
    """Return the distinct speeds above zero, from the fastest to the slowest."""
    speeds = np.empty(samples.size, np.int64)
    filled = 0
    for speed in samples:
        if speed == 0 or (speeds[:filled] == speed).any():
            continue
        place = filled
        while place > 0 and speeds[place - 1] < speed:
            speeds[place] = speeds[place - 1]
            place -= 1
        speeds[place] = speed
        filled += 1
    return speeds[:filled]


@kernel
def _cheapest_slots(costs: Floats, order: Ints, samples: Ints, speeds: Ints, work_samples: int) -> _Offers:
    slots, classes = costs.shape
    # No speed loses more slots to others than those use.
    longest = 0
    for speed in speeds:
        longest += (work_samples + speed - 1) // speed
    longest = min(longest, slots)
    length = np.zeros(speeds.size, np.int64)
    listed = np.empty((speeds.size, longest), np.int64)
    by = np.empty((speeds.size, longest), np.int64)
    price = np.empty((speeds.size, longest))
    sums = np.zeros((speeds.size, longest + 1))
    place = np.zeros(classes, np.int64)
    listed_by = np.full(slots, -1, np.int64)
    for speed in range(speeds.size):
        filled = 0
        while filled < longest:
            least, cheapest = np.inf, -1
            for index in range(classes):
                if samples[index] != speeds[speed]:
                    continue
                while place[index] < slots:
                    slot = order[index, place[index]]
                    if (
                        costs[slot, index] < np.inf
                        and listed_by[slot] != speed
                        and (speed == 0 or not _is_dominated(costs, samples, slot, index))
                    ):
                        if costs[slot, index] < least:
                            least, cheapest = costs[slot, index], index
                        break
                    place[index] += 1
            if cheapest < 0:
                break
            slot = order[cheapest, place[cheapest]]
            place[cheapest] += 1
            listed_by[slot] = speed
            listed[speed, filled], by[speed, filled], price[speed, filled] = slot, cheapest, least
            sums[speed, filled + 1] = sums[speed, filled] + least
            filled += 1
        length[speed] = filled
    return _Offers(length, listed, by, price, sums)


@kernel
def _is_dominated(costs: Floats, samples: Ints, slot: int, index: int) -> bool:
    """Return whether a faster class is as cheap in a slot."""
    for other in range(samples.size):
        if samples[other] > samples[index] and costs[slot, other] <= costs[slot, index]:
            return True
    return False


@kernel
def _least_counts(
    offers: _Offers, speeds: Ints, work_samples: int, usable: int, limit_steps: int
) -> tuple[float, Ints, int]:
    """Return a lower bound on the cost of counts that cover the work, the best counts found (-1 without any),
    and the steps."""
    last = speeds.size - 1
    best_counts = np.full(speeds.size, -1, np.int64)
    if last == 0:
        best_counts[0] = (work_samples + speeds[0] - 1) // speeds[0]
        return offers.sums[0, best_counts[0]], best_counts, 0
    # The linear relaxation takes the cheapest slots per sample; the last one sets the rate.
    at = np.zeros(speeds.size, np.int64)
    covered, rate, steps = 0, 0.0, 0
    while True:
        least, cheapest = np.inf, 0
        for speed in range(speeds.size):
            if at[speed] < offers.length[speed]:
                per_sample = offers.price[speed, at[speed]] / speeds[speed]
                if per_sample < least:
                    least, cheapest = per_sample, speed
        steps += speeds.size
        if covered + speeds[cheapest] >= work_samples:
            rate = least
            break
        covered += speeds[cheapest]
        at[cheapest] += 1
    relaxed = rate * (work_samples - covered)
    for speed in range(speeds.size):
        relaxed += offers.sums[speed, at[speed]]
    best = np.inf
    if at.sum() < usable:
        best = relaxed - rate * (work_samples - covered) + offers.price[cheapest, at[cheapest]]
        best_counts[:] = at
        best_counts[cheapest] += 1
    # Counts are tried in turn, except those of the last speed, which follow. The cost of a count beyond the
    # relaxation is convex in it, so only a range of each may improve on the best.
    low, high = np.empty(last, np.int64), np.empty(last, np.int64)
    for speed in range(last):
        low[speed] = high[speed] = at[speed]
        while low[speed] > 0 and relaxed + _excess(offers, speeds, rate, at, speed, low[speed] - 1) < best:
            low[speed] -= 1
        while (
            high[speed] < offers.length[speed]
            and relaxed + _excess(offers, speeds, rate, at, speed, high[speed] + 1) < best
        ):
            high[speed] += 1
    counts = np.zeros(speeds.size, np.int64)
    beyond = np.zeros(speeds.size)
    done, used = np.zeros(speeds.size, np.int64), np.zeros(speeds.size, np.int64)
    depth = 0
    counts[0] = low[0] - 1
    while depth >= 0:
        counts[depth] += 1
        if counts[depth] > high[depth]:
            depth -= 1
            continue
        steps += 1
        if steps > limit_steps:
            return min(relaxed, best), best_counts, steps
        beyond[depth + 1] = beyond[depth] + _excess(offers, speeds, rate, at, depth, counts[depth])
        done[depth + 1] = done[depth] + counts[depth] * speeds[depth]
        used[depth + 1] = used[depth] + counts[depth]
        if relaxed + beyond[depth + 1] >= best or used[depth + 1] > usable:
            continue
        if depth + 1 < last:
            depth += 1
            counts[depth] = low[depth] - 1
            continue
        missing = work_samples - done[last]
        counts[last] = (missing + speeds[last] - 1) // speeds[last] if missing > 0 else 0
        if counts[last] <= offers.length[last] and used[last] + counts[last] <= usable:
            cost = 0.0
            for speed in range(speeds.size):
                cost += offers.sums[speed, counts[speed]]
            if cost < best:
                best = cost
                best_counts[:] = counts
    return best, best_counts, steps


@kernel
def _excess(offers: _Offers, speeds: Ints, rate: float, at: Ints, speed: int, count: int) -> float:
    """Return the cost of a count of a speed beyond the relaxation, which uses `at` of it at `rate`."""
    spent = offers.sums[speed, count] - offers.sums[speed, at[speed]]
    return float(max(spent - rate * speeds[speed] * (count - at[speed]), 0.0))


@kernel
def _cover_of_counts(offers: _Offers, counts: Ints, slowest_first: bool, chosen: Ints) -> float:
    """Write a cover with these counts, speed by speed in its cheapest free slots, and return its cost.

    Infinite where too few slots are free.
    """
    cost = 0.0
    for turn in range(counts.size):
        speed = counts.size - 1 - turn if slowest_first else turn
        place = 0
        for _ in range(counts[speed]):
            while place < offers.length[speed] and chosen[offers.slots[speed, place]] != NO_CHOICE:
                place += 1
            if place == offers.length[speed]:
                return np.inf
            chosen[offers.slots[speed, place]] = offers.classes[speed, place]
            cost += offers.price[speed, place]
    return cost
