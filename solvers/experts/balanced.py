"""Placement of experts that minimises the tokens of the busiest device.

An expert's tokens may be split over its replicas in any proportion. So with room for two experts per device,
and no more experts than devices, every device can get exactly the mean: the argument is that of Walker's
alias method (1977). Devices are filled one after another up to a level. Each gets the lightest adjacent
experts, in the order of loads, that together reach the level; only the last of them is split. This is the
sliding window of packing with splittable items and cardinality constraints (Chung et al. 2006, Epstein and
van Stee 2011).

Where experts outnumber devices, the window may fail at the mean. Then the least feasible level is searched.
Two other placements are computed too: whole experts, the heaviest first on the least loaded device; and
EPLB's greedy replication, with its tokens split again. The best of the three is taken, so the result is never
worse than EPLB's. Exchanges of experts between devices improve it further.
"""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.exchanges import even_out, exchanged, largest_load
from solvers.experts.placement import Cluster, Demand, Placement
from solvers.experts.replicated import replicated_parts

_HALVINGS = 12
"""Halvings of the search range of the level: 1/4096 of it is left."""


def place_balanced(demand: Demand, cluster: Cluster) -> Placement:
    """Return the placement with the least largest load, and its shares.

    The unknown part of a demand counts as spread evenly. With no more experts than devices, and room for two
    experts on each, no device gets more than the mean, rounded up. With more experts it is a heuristic.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    full = demand.filled()
    parts = balanced_parts(full.loads, cluster.devices, cluster.most_per_device)
    return Placement.of_parts(parts, cluster.most_per_device)


@kernel
def balanced_parts(loads: Ints, devices: int, slots: int) -> Ints:
    """Return the parts of the loads, (devices, experts); -1 where a device lacks the expert."""
    order = np.argsort(loads, kind="mergesort")
    mean = -(-loads.sum() // devices)
    parts = np.empty((devices, loads.size), np.int64)
    if _fill(loads, order, mean, slots, parts):
        return parts
    best = _whole(loads, order, devices, slots)
    replicated = replicated_parts(loads, devices, slots)
    even_out(loads, replicated, slots)
    if largest_load(replicated) < largest_load(best):
        best = replicated
    low, high = mean, largest_load(best)
    for _ in range(_HALVINGS):
        if low + 1 >= high:
            break
        middle = (low + high) // 2
        if _fill(loads, order, middle, slots, parts):
            even_out(loads, parts, slots)
            high = min(middle, largest_load(parts))
            best = parts.copy()
        else:
            low = middle
    # No expert has more replicas than the slots that remain after one for each of the others.
    least = max(mean, -(-loads[order[-1]] // (devices * slots - loads.size + 1)))
    return exchanged(loads, best, slots, least)


@kernel
def _fill(loads: Ints, order: Ints, level: int, slots: int, parts: Ints) -> bool:
    """Fill devices up to a level, and return whether all experts are placed.

    Args:
        order: (experts,) the lightest first.
        parts: (devices, experts) is overwritten.
    """
    devices = parts.shape[0]
    parts[:] = -1
    waiting = order.copy()  # The lightest first; the rest of a split expert stays at its position.
    rest = loads[order]
    count = waiting.size
    for device in range(devices):
        first, end, held = 0, 0, np.int64(0)
        while end < count and held < level:
            if end - first == slots:
                held -= rest[first]
                first += 1
            held += rest[end]
            end += 1
        # Without any load left, experts without load are placed, as many as fit.
        while end < count and end - first < slots and held + rest[end] <= level:
            held += rest[end]
            end += 1
        for place in range(first, end):
            parts[device, waiting[place]] = rest[place]
        kept = first
        if held > level:
            # The excess of the last expert stays. It is lighter than all after it.
            last = end - 1
            parts[device, waiting[last]] -= held - level
            remaining, remainder = waiting[last], held - level
            while kept > 0 and rest[kept - 1] > remainder:
                waiting[kept], rest[kept] = waiting[kept - 1], rest[kept - 1]
                kept -= 1
            waiting[kept], rest[kept] = remaining, remainder
            kept = first + 1
        for place in range(end, count):
            waiting[kept], rest[kept] = waiting[place], rest[place]
            kept += 1
        count = kept
    return count == 0


@kernel
def _whole(loads: Ints, order: Ints, devices: int, slots: int) -> Ints:
    """Place each expert on one device: the heaviest first, on the least loaded device that has room."""
    parts = np.full((devices, loads.size), -1, np.int64)
    held = np.zeros(devices, np.int64)
    taken = np.zeros(devices, np.int64)
    for expert in order[::-1]:
        best = -1
        for device in range(devices):
            if taken[device] < slots and (best < 0 or held[device] < held[best]):
                best = device
        parts[best, expert] = loads[expert]
        held[best] += loads[expert]
        taken[best] += 1
    return parts
