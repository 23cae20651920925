"""How much of each class of nodes is taken, slot by slot."""

import numpy as np

from solvers.auction.market.market import Market
from solvers.compiled import Floats, Ints, kernel


def taken_of(market: Market) -> Floats:
    """(2, slots, classes) what is taken of the compute and of the memory of each class."""
    classes = len(market.fleet.classes)
    bounds = np.array([c.start for c in market.fleet.classes] + [len(market.fleet.nodes)], np.int64)
    taken = np.zeros((2, market.horizon_slots, classes))
    for index, (free, capacity) in enumerate(
        ((market.free_samples, market.capacity_samples), (market.free_gib, market.capacity_gib))
    ):
        _sum_taken(free, capacity, bounds, taken[index])
    return taken


@kernel
def weighted_sums(taken: Floats, slots: int, class_units: Floats) -> tuple[float, float]:
    """Of compute and of memory over the first slots.

    In a fixed order, as numpy's own sum depends on the machine's vector width.
    """
    sums = np.zeros(2)
    for resource in range(2):
        for slot in range(slots):
            for index in range(taken.shape[2]):
                sums[resource] += taken[resource, slot, index] * class_units[index]
    return sums[0], sums[1]


@kernel
def _sum_taken(free: Floats, capacity: Floats, bounds: Ints, taken: Floats) -> None:
    for slot in range(free.shape[0]):
        for index in range(bounds.size - 1):
            total = 0.0
            for row in range(bounds[index], bounds[index + 1]):
                total += 1.0 - free[slot, row] / capacity[row]
            taken[slot, index] = total / (bounds[index + 1] - bounds[index])
