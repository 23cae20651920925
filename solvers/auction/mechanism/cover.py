"""Cheapest cover: at most one node class per slot, enough samples in total, at the least additive cost.

This is the schedule search for given prices per node-slot (problem 12 with fixed ceilings, erratum P3): a
multiple-choice knapsack cover. Counts of slots per speed often solve it (`counts.py`). The remaining cases
are searched from the linear relaxation outwards, as Pisinger does ("A minimal algorithm for the
multiple-choice knapsack problem", 1995). The relaxation chooses a class in every slot. The choices are
revised in the order of the cost of another choice. The bound of the relaxation prunes partial covers that
cannot lead to a cheaper cover.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.auction.mechanism.counts import EQUAL, NO_CHOICE, Cover, cover_by_counts
from solvers.compiled import Floats, Ints, kernel

MAX_LABELS = 2**18
"""Most partial covers kept at once, 20 bytes each."""
MAX_CHANGES = 2**21
"""Most choices on the way to partial covers, 16 bytes each."""
_FIRST_CHANGES = 2**10
_RELAXING_STEPS = 8
"""Counted steps per class in a slot for the linear relaxation, which sorts them by their cost."""
_LABEL_STEPS = 3
"""Counted steps per label: it takes about three times as long as other steps."""


class _Relaxed(NamedTuple):
    """Linear relaxation, without the slot that it divides."""

    chosen: Ints
    """Class or `NO_CHOICE` in each slot, (slots,). The samples of one more slot would be sufficient."""
    covered_samples: int
    cost: float
    rate: float
    """Cost per missing sample."""
    divided_slot: int
    divided_class: int
    """Class with which that slot makes the samples sufficient."""


class _Core(NamedTuple):
    """Slots that may be decided differently, from the cheapest change to the dearest."""

    slots: Ints
    up: Floats
    """Least cost, beyond the rate, of one sample more, from each slot on, (slots + 1,)."""
    down: Floats
    """Least cost, beyond the saved rate, of one sample less, from each slot on, (slots + 1,)."""


@kernel
def cheapest_cover(
    costs: Floats, order: Ints, samples: Ints, work_samples: int, cutoff: float, limit_steps: int
) -> Cover:
    """Return the cheapest cover, or the cheapest found within the steps, with a lower bound on all others.

    Args:
        costs: (slots, classes), infinite where a class cannot be chosen, never negative.
        order: (classes, slots) the slots of each class from the cheapest to the dearest.
        samples: (classes,), zero only where all costs of the class are infinite.
        cutoff: the search ends once it has proven that no cover costs less.
        limit_steps: steps after which the search ends, up to one more pass over the slots.
    """
    found = cover_by_counts(costs, order, samples, work_samples, limit_steps)
    if found.bound == np.inf or found.bound >= min(cutoff, found.cost * (1.0 - EQUAL)):
        return found
    return _searched(costs, samples, work_samples, cutoff, limit_steps, found)


@kernel
def by_cost(costs: Floats) -> Ints:
    """Sort the slots of each class by cost, equal ones by index, (classes, slots)."""
    slots, classes = costs.shape
    order = np.empty((classes, slots), np.int64)
    for index in range(classes):
        order[index] = np.argsort(costs[:, index], kind="mergesort")
    return order


@kernel
def _searched(
    costs: Floats, samples: Ints, work_samples: int, cutoff: float, limit_steps: int, found: Cover
) -> Cover:
    """Improve the cover found by counts."""
    slots, classes = costs.shape
    steps = found.steps + _RELAXING_STEPS * slots * classes
    needed = _needed(costs, samples, work_samples)
    relaxed = _relaxed(costs, samples, needed)
    rate = relaxed.rate
    least = relaxed.cost + rate * (needed - relaxed.covered_samples)
    bound = max(found.bound, least)
    best, best_chosen = found.cost, found.chosen
    rounded_up = relaxed.chosen.copy()
    rounded_up[relaxed.divided_slot] = relaxed.divided_class
    cost = cost_of(costs, rounded_up)
    if cost < best:
        best, best_chosen = cost, rounded_up
    if bound >= min(cutoff, best * (1.0 - EQUAL)):
        return Cover(bound, best, best_chosen, steps)
    core = _core_of(costs, samples, relaxed, min(best, cutoff) - least)
    # A label is a partial cover: some slots of the core are decided again, all others as in the relaxation.
    # Labels are sorted from the most samples to the least and from the dearest to the cheapest.
    sums = np.empty(1, np.int64)
    sums[0] = relaxed.covered_samples
    spent, change = np.zeros(1), np.full(1, -1, np.int32)
    before, slot_of = np.empty(_FIRST_CHANGES, np.int32), np.empty(_FIRST_CHANGES, np.int32)
    choice_of = np.empty(_FIRST_CHANGES, np.int64)
    changes, best_change = 0, -1
    delta_samples, delta_cost = np.empty(classes + 2, np.int64), np.empty(classes + 2)
    choice, place = np.empty(classes + 2, np.int64), np.empty(classes + 2, np.int64)
    open_bound = np.inf
    for turn in range(core.slots.size):
        limit = min(best, cutoff)
        slot = core.slots[turn]
        ways = _write_choices(costs, samples, relaxed, slot, limit - least, delta_samples, delta_cost, choice)
        size = sums.size * ways
        if steps + _LABEL_STEPS * size > limit_steps or size > MAX_LABELS or changes + size > MAX_CHANGES:
            open_bound = _open_bound(sums, spent, needed, relaxed, core, turn)
            break
        steps += _LABEL_STEPS * size
        while changes + size > before.size:
            before, slot_of = _doubled(before), _doubled(slot_of)
            choice_of = np.concatenate((choice_of, np.empty_like(choice_of)))
        new_sums, new_spent = np.empty(size, np.int64), np.empty(size)
        new_change = np.empty(size, np.int32)
        filled = 0
        cheapest = np.inf
        place[:ways] = 0
        while True:
            # As a separate kernel, which receives the arrays again, this choice takes half as long again.
            way = -1
            for other in range(ways):
                if place[other] == sums.size:
                    continue
                if way < 0:
                    way = other
                    continue
                mine = sums[place[other]] + delta_samples[other]
                largest = sums[place[way]] + delta_samples[way]
                if mine > largest or (
                    mine == largest
                    and spent[place[other]] + delta_cost[other] < spent[place[way]] + delta_cost[way]
                ):
                    way = other
            if way < 0:
                break
            label = place[way]
            place[way] += 1
            total, cost = sums[label] + delta_samples[way], spent[label] + delta_cost[way]
            if cost >= cheapest:
                continue
            cheapest = cost
            improves = total >= needed and relaxed.cost + cost < best
            if improves:
                best = relaxed.cost + cost
            least_cost = relaxed.cost + _least_beyond(cost, needed - total, rate, core, turn + 1)
            is_open = least_cost < min(best, cutoff) * (1.0 - EQUAL)
            if not improves and not is_open:
                continue
            if way == 0:
                last = change[label]
            else:
                before[changes], slot_of[changes], choice_of[changes] = change[label], slot, choice[way]
                last = np.int32(changes)
                changes += 1
            if improves:
                best_change = last
            if is_open:
                new_sums[filled], new_spent[filled], new_change[filled] = total, cost, last
                filled += 1
        sums, spent, change = new_sums[:filled].copy(), new_spent[:filled].copy(), new_change[:filled].copy()
        if filled == 0 or bound >= best * (1.0 - EQUAL):
            break
    if best_change >= 0:
        best_chosen = relaxed.chosen.copy()
        _trace_back(before, slot_of, choice_of, best_change, best_chosen)
        best = cost_of(costs, best_chosen)
    # If the cutoff has dropped labels, only the cutoff is proven.
    return Cover(max(bound, min(best, cutoff, open_bound)), best, best_chosen, steps)


@kernel
def cost_of(costs: Floats, chosen: Ints) -> float:
    """Return the cost of a cover."""
    total = 0.0
    for slot in range(chosen.size):
        if chosen[slot] != NO_CHOICE:
            total += costs[slot, chosen[slot]]
    return total


@kernel
def _needed(costs: Floats, samples: Ints, work_samples: int) -> int:
    """Return the work, rounded up to a multiple of the greatest common divisor of the samples."""
    divisor = 0
    for index in range(samples.size):
        for slot in range(len(costs)):
            if costs[slot, index] < np.inf:
                divisor = math.gcd(divisor, samples[index])
                break
    return (work_samples + divisor - 1) // divisor * divisor


@kernel
def _relaxed(costs: Floats, samples: Ints, needed: int) -> _Relaxed:
    """Take the steps along the slots' convex hulls of (samples, cost) from the cheapest sample on."""
    slots, classes = costs.shape
    ascending = np.argsort(samples, kind="mergesort")
    per_sample = np.empty(slots * classes)
    slot_of, class_of = np.empty(slots * classes, np.int64), np.empty(slots * classes, np.int64)
    from_class = np.empty(slots * classes, np.int64)
    hull = np.empty(classes, np.int64)
    filled = 0
    for slot in range(slots):
        size = 0
        for index in ascending:
            cost = costs[slot, index]
            if cost == np.inf:
                continue
            while size > 0 and cost <= costs[slot, hull[size - 1]]:
                size -= 1
            if size > 0 and samples[hull[size - 1]] == samples[index]:
                continue
            while size > 0:
                lower = hull[size - 2] if size > 1 else NO_CHOICE
                if _per_sample(costs, samples, slot, lower, hull[size - 1]) < _per_sample(
                    costs, samples, slot, hull[size - 1], index
                ):
                    break
                size -= 1
            hull[size] = index
            size += 1
        for place in range(size):
            lower = hull[place - 1] if place > 0 else NO_CHOICE
            per_sample[filled] = _per_sample(costs, samples, slot, lower, hull[place])
            slot_of[filled], class_of[filled], from_class[filled] = slot, hull[place], lower
            filled += 1
    chosen = np.full(slots, NO_CHOICE, np.int64)
    covered = 0
    for step in np.argsort(per_sample[:filled], kind="mergesort"):
        slot, index, lower = slot_of[step], class_of[step], from_class[step]
        gained = samples[index] - (samples[lower] if lower != NO_CHOICE else 0)
        if covered + gained >= needed:
            return _Relaxed(chosen, covered, cost_of(costs, chosen), per_sample[step], slot, index)
        covered += gained
        chosen[slot] = index
    # This runs only if counts have found no cover of the work.
    return _Relaxed(chosen, covered, np.inf, 0.0, 0, NO_CHOICE)


@kernel
def _per_sample(costs: Floats, samples: Ints, slot: int, lower: int, upper: int) -> float:
    if lower == NO_CHOICE:
        return float(costs[slot, upper] / samples[upper])
    return float((costs[slot, upper] - costs[slot, lower]) / (samples[upper] - samples[lower]))


@kernel
def _core_of(costs: Floats, samples: Ints, relaxed: _Relaxed, gap: float) -> _Core:
    """Return the slots where another choice costs less than `gap` beyond the relaxation."""
    slots, classes = costs.shape
    core, least = np.empty(slots, np.int64), np.empty(slots)
    up, down = np.full(slots, np.inf), np.full(slots, np.inf)
    size = 0
    for slot in range(slots):
        beyond_least = np.inf
        for index in range(-1, classes):
            gained, beyond = _change(costs, samples, relaxed, slot, index)
            if index == relaxed.chosen[slot] or beyond >= gap:
                continue
            beyond_least = min(beyond_least, beyond)
            if gained > 0:
                up[slot] = min(up[slot], beyond / gained)
            elif gained < 0:
                down[slot] = min(down[slot], -beyond / gained)
        if beyond_least < np.inf:
            core[size], least[size] = slot, beyond_least
            size += 1
    ordered = core[:size][np.argsort(least[:size], kind="mergesort")]
    least_up, least_down = np.full(size + 1, np.inf), np.full(size + 1, np.inf)
    for turn in range(size - 1, -1, -1):
        least_up[turn] = min(least_up[turn + 1], up[ordered[turn]])
        least_down[turn] = min(least_down[turn + 1], down[ordered[turn]])
    return _Core(ordered, least_up, least_down)


@kernel
def _change(costs: Floats, samples: Ints, relaxed: _Relaxed, slot: int, index: int) -> tuple[int, float]:
    """Return the samples gained by another choice in a slot, and its cost beyond their rate (>= 0)."""
    held = relaxed.chosen[slot]
    gained, cost = 0, 0.0
    if index != NO_CHOICE:
        gained, cost = samples[index], costs[slot, index]
    if held != NO_CHOICE:
        gained, cost = gained - samples[held], cost - costs[slot, held]
    return gained, max(cost - relaxed.rate * gained, 0.0)


@kernel
def _write_choices(
    costs: Floats,
    samples: Ints,
    relaxed: _Relaxed,
    slot: int,
    gap: float,
    delta_samples: Ints,
    delta_cost: Floats,
    choice: Ints,
) -> int:
    """Write the choices for a slot, that of the relaxation first, and return their number."""
    held = relaxed.chosen[slot]
    delta_samples[0], delta_cost[0], choice[0] = 0, 0.0, held
    ways = 1
    for index in range(-1, samples.size):
        gained, beyond = _change(costs, samples, relaxed, slot, index)
        if index == held or beyond >= gap:
            continue
        cost = 0.0 if index == NO_CHOICE else costs[slot, index]
        delta_samples[ways], choice[ways] = gained, index
        delta_cost[ways] = cost - (0.0 if held == NO_CHOICE else costs[slot, held])
        ways += 1
    return ways


@kernel
def _open_bound(sums: Ints, spent: Floats, needed: int, relaxed: _Relaxed, core: _Core, turn: int) -> float:
    """Return a lower bound on the cost of all covers that can still follow from the labels."""
    bound = np.inf
    for label in range(sums.size):
        beyond = _least_beyond(spent[label], needed - sums[label], relaxed.rate, core, turn)
        bound = min(bound, relaxed.cost + beyond)
    return bound


@kernel
def _least_beyond(spent: float, missing: int, rate: float, core: _Core, turn: int) -> float:
    """Return the least cost of a cover from a label beyond the relaxation's choices.

    Args:
        spent: cost of the label beyond them.
        missing: missing samples; negative if there are surplus ones.
        turn: index of the first open slot of the core.
    """
    if missing > 0:
        return float(spent + (rate + core.up[turn]) * missing)
    return float(spent + max(rate - core.down[turn], 0.0) * missing)


@kernel
def _doubled(array: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate((array, np.empty_like(array)))


@kernel
def _trace_back(
    before: NDArray[np.int32], slot_of: NDArray[np.int32], choice_of: Ints, change: int, chosen: Ints
) -> None:
    """Apply the changes that lead to a label."""
    while change >= 0:
        chosen[slot_of[change]] = choice_of[change]
        change = before[change]
