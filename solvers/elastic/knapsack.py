"""Multiple-choice knapsack: at most one item of each group, so that the sum of values is largest.

Dynamic programming over the capacity (thesis, section 3.5.2): exact, in time items x capacity and memory
groups x capacity. Where that is too much: by efficiency (Sinha and Zoltners 1979), in time of the items.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import Floats, Ints, kernel

MAX_ITEMS_PER_GROUP = 2**16 - 1
"""Bound because a choice is kept in 16 bits."""
MOST_CELLS = 2**24
"""Most groups x capacity of an exact choice: 32 MiB. Beyond it, thousands of groups share the capacity."""


class ItemGroup(NamedTuple):
    """Items of which at most one is taken."""

    weights_gpus: Sequence[int]
    """Weight of each item, at least 1, ascending."""
    values_s: Sequence[float]
    """Value of each item, finite. An item without value is not taken."""


def best_choice(groups: Sequence[ItemGroup], capacity_gpus: int) -> list[int | None]:
    """Return the index of the item taken of each group, or None.

    Of choices of equal value, it is the one of fewer GPUs; of those, the choice with the heavier item of the
    first group, then of the second, and so on. Values are added from the last group to the first.

    With more than `MOST_CELLS` groups x capacity that do not all fit, the choice may be worse than the best,
    by at most the value of one group's item.

    Raises:
        ValueError: weights and values of a group differ in length, its weights are not positive and
            ascending, or a value is not finite.
    """
    starts, weights, values = _flat(groups)
    if weights.size == 0 or capacity_gpus < weights.min():
        return [None] * len(groups)
    unit = int(np.gcd.reduce(weights))
    chosen = _choose(starts, weights // unit, values, capacity_gpus // unit, MOST_CELLS)
    return [None if item < 0 else item for item in chosen.tolist()]


def _flat(groups: Sequence[ItemGroup]) -> tuple[Ints, Ints, Floats]:
    """Return where each group's items start, (groups + 1,), and their weights and values, (items,)."""
    starts = np.zeros(len(groups) + 1, np.int64)
    all_weights: list[int] = []
    all_values: list[float] = []
    for index, group in enumerate(groups):
        all_weights += group.weights_gpus
        all_values += group.values_s
        starts[index + 1] = len(all_weights)
        if len(all_weights) != len(all_values):
            raise ValueError(
                f"group {index} has {len(group.weights_gpus)} weights and {len(group.values_s)} values"
            )
        if len(group.weights_gpus) > MAX_ITEMS_PER_GROUP:
            raise ValueError(f"group {index} has {len(group.weights_gpus)} items, most {MAX_ITEMS_PER_GROUP}")
    weights = np.array(all_weights, np.int64)
    values = np.array(all_values, np.float64)
    wrong = _first_wrong(starts, weights, values)
    if wrong >= 0:
        owner = int(np.searchsorted(starts, wrong, side="right")) - 1
        raise ValueError(
            f"item {wrong - starts[owner]} of group {owner} weighs {weights[wrong]} GPUs and is worth "
            f"{values[wrong]} s: give positive, ascending weights and finite values"
        )
    return starts, weights, values


@kernel
def _first_wrong(starts: Ints, weights: Ints, values: Floats) -> int:
    """Return the first item that violates a rule of `ItemGroup`, or -1."""
    for group in range(starts.size - 1):
        least = 1
        for item in range(starts[group], starts[group + 1]):
            if weights[item] < least or not math.isfinite(values[item]):
                return item
            least = weights[item] + 1
    return -1


@kernel
def _choose(starts: Ints, weights: Ints, values: Floats, capacity: int, most_cells: int) -> Ints:
    """Return the item taken of each group, -1 for none, (groups,)."""
    groups = starts.size - 1
    chosen = np.full(groups, -1, np.int64)
    heaviest = np.zeros(groups, np.int64)
    for group in range(groups):
        for item in range(starts[group], starts[group + 1]):
            if weights[item] <= capacity:
                heaviest[group] = weights[item]
    if heaviest.sum() <= capacity:
        for group in range(groups):
            highest = 0.0
            for item in range(starts[group], starts[group + 1]):
                if weights[item] <= capacity and values[item] > highest:
                    highest = values[item]
                    chosen[group] = item - starts[group]
        return chosen
    if groups * (capacity + 1) > most_cells:
        return _by_efficiency(starts, weights, values, capacity)
    choices = np.zeros((groups, capacity + 1), np.uint16)
    most = _tabulate(starts, weights, values, heaviest, choices)
    left = capacity
    while left > 0 and most[left - 1] == most[capacity]:
        left -= 1
    for group in range(groups):
        item = int(choices[group, left]) - 1
        chosen[group] = item
        if item >= 0:
            left -= int(weights[starts[group] + item])
    return chosen


@kernel
def _by_efficiency(starts: Ints, weights: Ints, values: Floats, capacity: int) -> Ints:
    """Return the item of each group, -1 for none, (groups,), in the best choice of fractional items. A group
    with a fraction keeps its last whole item.

    A group advances from item to item of its upper concave hull. The steps of all groups are taken in the
    order of their gain per weight, ties by group; a group whose step does not fit keeps its item.
    """
    groups, items = starts.size - 1, weights.size
    hull = np.zeros(items, np.int64)
    sizes = np.zeros(groups, np.int64)
    gains = np.zeros(items, np.float64)
    for group in range(groups):
        first, size = starts[group], 0
        for item in range(first, starts[group + 1]):
            if weights[item] > capacity:
                break
            if values[item] <= (values[hull[first + size - 1]] if size else 0.0):
                continue
            while True:
                weight, value = 0, 0.0
                if size:
                    weight, value = weights[hull[first + size - 1]], values[hull[first + size - 1]]
                gain = (values[item] - value) / (weights[item] - weight)
                if size == 0 or gain < gains[first + size - 1]:
                    break
                size -= 1
            hull[first + size] = item
            gains[first + size] = gain
            size += 1
        sizes[group] = size
        gains[first + size : starts[group + 1]] = 0.0
    owners = np.zeros(items, np.int64)
    for group in range(groups):
        owners[starts[group] : starts[group + 1]] = group
    chosen = np.full(groups, -1, np.int64)
    steps = np.zeros(groups, np.int64)
    left = capacity
    for place in np.argsort(-gains, kind="mergesort"):
        group = owners[place]
        if gains[place] <= 0.0:
            break
        # The hull is concave, so the steps of a group come in their order. After a step that does not fit,
        # none does.
        if place - starts[group] != steps[group]:
            continue
        item = hull[place]
        before = weights[starts[group] + chosen[group]] if chosen[group] >= 0 else 0
        if weights[item] - before <= left:
            left -= weights[item] - before
            chosen[group] = item - starts[group]
            steps[group] += 1
    return chosen


@kernel
def _tabulate(
    starts: Ints, weights: Ints, values: Floats, heaviest: Ints, choices: NDArray[np.uint16]
) -> Floats:
    """Return the largest value within each capacity, (capacity + 1,). Set `choices` to 1 + the item of each
    group in the best choice from this group and those after it.

    Groups are processed from the last to the first, so that ties are decided by the first group. Of equal
    values the heavier item stays: at the least capacity of that value, later groups get less.
    """
    capacity = choices.shape[1] - 1
    most = np.zeros(capacity + 1)
    before = np.zeros(capacity + 1)
    reach = 0
    for group in range(starts.size - 2, -1, -1):
        # Beyond the weight of all groups so far, there is no more gain.
        further = min(reach + heaviest[group], capacity)
        most[reach + 1 : further + 1] = most[reach]
        reach = further
        before[: reach + 1] = most[: reach + 1]
        row = choices[group]
        for item in range(starts[group], starts[group + 1]):
            weight, value = weights[item], values[item]
            if weight > capacity:
                break
            number = np.uint16(item - starts[group] + 1)
            if weight <= reach:
                _offer(before, value, number, most[weight : reach + 1], row[weight : reach + 1])
    return most


@kernel
def _offer(before: Floats, value: float, number: np.uint16, most: Floats, row: NDArray[np.uint16]) -> None:
    """Choose an item at each capacity where the value is no less with it. All arrays but `before` begin at
    the item's weight."""
    for index in range(most.size):
        worth = before[index] + value
        is_better = worth >= most[index]
        most[index] = worth if is_better else most[index]
        row[index] = number if is_better else row[index]
