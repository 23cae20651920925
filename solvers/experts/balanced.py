"""Experts placed so that the device with the most tokens has as few as can be.

An expert's tokens may be split over its replicas in any proportion. So with room for two experts per device,
and no more experts than devices, every device can be given exactly the mean: the argument is that of Walker's
alias method (1977). Devices are filled one after another up to a level, each from the lightest neighbours in
the order of loads that together reach it, of which only the last is split: the sliding window of packing with
splittable items and cardinality constraints (Chung et al. 2006, Epstein and van Stee 2011). Where experts
outnumber devices the window may fail at the mean. Then the least level at which it does not is looked for;
experts are also placed whole, the heaviest first on the least loaded device, and by EPLB's greedy
replication, with their tokens split anew. The best of the three is taken, so that it is never worse than
EPLB's.
"""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.placement import Cluster, Demand, Placement
from solvers.experts.replicated import replicated_parts
from solvers.experts.splitting import split_evenly

_HALVINGS = 12
"""Of the range that the level is looked for in: it ends within 1/4096 of the mean to twice the mean."""


def place_balanced(demand: Demand, cluster: Cluster) -> Placement:
    """The placement of the least largest load, and shares by which it comes about.

    What is not known of a demand counts as spread evenly. With no more experts than devices, and two experts
    on each or more, no device is planned more than the mean, rounded up; with more experts it is a heuristic.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    full = demand.filled()
    parts = _place(full.loads, cluster.devices, cluster.most_per_device)
    return Placement.of_parts(parts, cluster.most_per_device)


@kernel
def _place(loads: Ints, devices: int, slots: int) -> Ints:
    """(devices, experts) parts of the loads, -1 where a device lacks the expert."""
    order = np.argsort(loads, kind="mergesort")
    mean = -(-loads.sum() // devices)
    parts = np.empty((devices, loads.size), np.int64)
    if _fill(loads, order, mean, slots, parts):
        return parts
    best = _whole(loads, order, devices, slots)
    replicated = replicated_parts(loads, devices, slots)
    _even_out(loads, replicated, slots)
    if _largest(replicated) < _largest(best):
        best = replicated
    low, high = mean, _largest(best)
    for _ in range(_HALVINGS):
        if low + 1 >= high:
            break
        middle = (low + high) // 2
        if _fill(loads, order, middle, slots, parts):
            _even_out(loads, parts, slots)
            high = min(middle, _largest(parts))
            best = parts.copy()
        else:
            low = middle
    return best


@kernel
def _largest(parts: Ints) -> int:
    loads = np.zeros(parts.shape[0], np.int64)
    for device in range(parts.shape[0]):
        for part in parts[device]:
            loads[device] += max(part, 0)
    return int(loads.max())


@kernel
def _fill(loads: Ints, order: Ints, level: int, slots: int, parts: Ints) -> bool:
    """Fills devices up to a level; whether all experts are placed.

    Args:
        order: (experts,) the lightest first.
        parts: (devices, experts) is overwritten.
    """
    devices = parts.shape[0]
    parts[:] = -1
    waiting = order.copy()  # The lightest first; what remains of a split expert stays where it was picked.
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
        # Without any load left, experts that nobody asks for are placed as many as fit.
        while end < count and end - first < slots and held + rest[end] <= level:
            held += rest[end]
            end += 1
        for place in range(first, end):
            parts[device, waiting[place]] = rest[place]
        kept = first
        if held > level:
            # What is too much of the last stays. It is lighter than all after it.
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
    """Each expert on one device, the heaviest first on the least loaded device that has room."""
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


@kernel
def _even_out(loads: Ints, parts: Ints, slots: int) -> None:
    """Splits the loads anew over the devices that have each expert."""
    devices = parts.shape[0]
    experts = np.full((devices, slots), -1, np.int64)
    for device in range(devices):
        slot = 0
        for expert in range(loads.size):
            if parts[device, expert] >= 0:
                experts[device, slot] = expert
                slot += 1
    split = split_evenly(experts, loads)
    for device in range(devices):
        for slot in range(slots):
            if experts[device, slot] >= 0:
                parts[device, experts[device, slot]] = split[device, slot]
