"""Units of room, equal for all classes of nodes: a node has as many as it trains samples in a slot.

A task that takes a share s of a node's compute takes s times the node's units of compute, so all of its work
takes as many units as it has samples, on any class. Memory is counted likewise: a share of a node's memory
has as many units as that share of its compute. A price per unit is then one number for nodes of any speed,
and the price of a node-slot of a class is that number times the class's units.
"""

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.window import Window
from solvers.compiled import Floats, Ints, kernel


@kernel
def least_memory_units(demand: Demand, capacity_samples: Floats) -> float:
    """Return the least memory of any plan: the work, on the class with the least memory per sample.

    Args:
        capacity_samples: (classes,) units of a node.
    """
    least = np.inf
    for index in range(demand.samples.size):
        if demand.samples[index] > 0:
            units = demand.memory_share[index] * capacity_samples[index] / demand.samples[index]
            least = min(least, units)
    return least * demand.work_samples


def more_units(before: tuple[float, float], now: tuple[float, float]) -> tuple[float, float]:
    """Return the largest growth of the units of compute and of memory of a node-slot.

    Taken room stays taken: if a node grows from M to N GiB, tasks may hold T GiB at U / M units each, and
    then N - T at V / N, in total V + T (U / M - V / N), where T is at most the smaller of M and N.

    Args:
        before, now: units and GiB of the node.
    """
    (old_units, old_gib), (units, gib) = before, now
    dearer = max(min(old_gib, gib) * (old_units / old_gib - units / gib), 0.0)
    return max(units - old_units, 0.0), max(units - old_units + dearer, 0.0)


def least_cost_micros(demand: Demand, window: Window) -> int:
    """Return the least cost of vendor and operation of any plan, regardless of room, in whole micros."""
    operational = _least_operational(
        window.operational[int(window.delays_slots[0]) :], demand.samples, demand.work_samples
    )
    # Vendors are ascending in delay and descending in price.
    return int(window.prices_micros[-1]) + int(operational * (1 - 1e-12))


@kernel
def _least_operational(operational: Floats, samples: Ints, work_samples: int) -> float:
    """Return the cost of the work in the slots where a sample costs least, the last one in part."""
    slots, classes = operational.shape
    per_sample = np.full(slots, np.inf)
    most = 0
    for index in range(classes):
        most = max(most, samples[index])
        if samples[index] > 0:
            for slot in range(slots):
                per_sample[slot] = min(per_sample[slot], operational[slot, index] / samples[index])
    per_sample.sort()
    total, left = 0.0, work_samples
    for slot in range(slots):
        part = min(left, most)
        total += part * per_sample[slot]
        left -= part
        if left <= 0:
            break
    return total
