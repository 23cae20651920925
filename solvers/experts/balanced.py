"""Placement of experts that minimises the tokens of the busiest device, and one that keeps tokens local.

An expert's tokens may be split over its replicas in any proportion. So with room for two experts per device,
and no more experts than devices, every device can get exactly the mean: the argument is that of Walker's
alias method (1977). Devices are filled one after another up to a level. Each gets the lightest adjacent
experts, in the order of loads, that together reach the level; only the last of them is split. This is the
sliding window of packing with splittable items and cardinality constraints (Chung et al. 2006, Epstein and
van Stee 2011).

Where experts outnumber devices, the window may fail at the mean. Then the least feasible level is searched.
Two other placements are computed too: whole experts, the heaviest first on the least loaded device; and
EPLB's greedy replication, with its tokens split again. The best of the three is taken, so the result is never
worse than EPLB's. Exchanges improve it further: one expert of the busiest device for one of another device.

A token whose expert is on its own device needs no all-to-all. So `place_local` puts the most popular experts
on every device and balances the others in the remaining slots: only their tokens travel, and the devices get
equally many. The number of experts on every device is searched.
"""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.published import replicated_parts
from solvers.experts.splitting import split_evenly

_MAX_SLOTS_TRIED = 2_048
"""Bound on exchanges tried, times slots of the cluster. For a few devices this covers all exchanges several
times; with 64 devices a single exchange changes little."""

_HALVINGS = 12
"""Halvings of the search range of the level: 1/4096 of it is left."""

_SLOTS_TO_BALANCE = 2
"""With so many slots on each device, and no more experts than devices, any loads can be balanced."""
_AS_EVEN = 100
"""Tolerance: a largest load counts as the least if it exceeds it by at most 1/100."""


@kernel
def exchanged(loads: Ints, parts: Ints, slots: int, least: int) -> Ints:
    """Return parts whose largest load on a device is as before, or smaller.

    An exchange is kept if the busiest device gets less, or fewer devices are as busy. A free slot gets
    another replica.

    Args:
        parts: (devices, experts) of the loads, -1 where a device lacks the expert.
        slots: slots of each device.
        least: largest load at which the search ends.
    """
    devices = parts.shape[0]
    experts = _slots_of(parts, slots)
    loads_of_devices = split_evenly(experts, loads).sum(axis=1)
    tries = _MAX_SLOTS_TRIED // (devices * slots)
    while tries > 0 and loads_of_devices.max() > least:
        tries = _exchange(loads, experts, loads_of_devices, tries)
    split = split_evenly(experts, loads)
    better = np.full(parts.shape, -1, np.int64)
    for device in range(devices):
        for slot in range(slots):
            if experts[device, slot] >= 0:
                better[device, experts[device, slot]] = split[device, slot]
    return better


@kernel
def _exchange(loads: Ints, experts: Ints, loads_of_devices: Ints, tries: int) -> int:
    """Make the first exchange that is better, and return the tries that are left; 0 if none is better.

    Args:
        experts: (devices, slots) is changed.
        loads_of_devices: (devices,) is changed.
    """
    devices, slots = experts.shape
    device = loads_of_devices.argmax()
    largest = loads_of_devices.max()
    busiest = (loads_of_devices == largest).sum()
    free = experts[device].argmin() if experts[device].min() < 0 else -1
    for slot in range(slots):
        mine = experts[device, slot]
        for place in range(devices * slots):
            other, other_slot = place // slots, place % slots
            theirs = experts[other, other_slot]
            if mine < 0 or loads_of_devices[other] == largest or (experts[other] == mine).any():
                continue
            if theirs >= 0 and (experts[device] == theirs).any():
                continue
            # If the device has a free slot, it gets the returned expert and keeps its own: both then have it.
            target = free if free >= 0 else slot
            before = experts[device, target]
            experts[other, other_slot] = mine
            if theirs >= 0:
                experts[device, target] = theirs
            new = split_evenly(experts, loads).sum(axis=1)
            tries -= 1
            if new.max() < largest or (new.max() == largest and (new == largest).sum() < busiest):
                loads_of_devices[:] = new
                return tries
            experts[other, other_slot] = theirs
            experts[device, target] = before
            if tries == 0:
                return 0
    return 0


@kernel
def even_out(loads: Ints, parts: Ints, slots: int) -> None:
    """Split the loads again over the devices that have each expert.

    Args:
        parts: (devices, experts) is overwritten where it is not -1.
    """
    experts = _slots_of(parts, slots)
    split = split_evenly(experts, loads)
    for device in range(parts.shape[0]):
        for slot in range(slots):
            if experts[device, slot] >= 0:
                parts[device, experts[device, slot]] = split[device, slot]


@kernel
def largest_load(parts: Ints) -> int:
    """Return the load of the busiest device, from parts (devices, experts)."""
    loads = np.zeros(parts.shape[0], np.int64)
    for device in range(parts.shape[0]):
        for part in parts[device]:
            loads[device] += max(part, 0)
    return int(loads.max())


@kernel
def _slots_of(parts: Ints, slots: int) -> Ints:
    """Return the experts of each device, (devices, slots), ascending, then -1."""
    experts = np.full((parts.shape[0], slots), -1, np.int64)
    for device in range(parts.shape[0]):
        slot = 0
        for expert in range(parts.shape[1]):
            if parts[device, expert] >= 0:
                experts[device, slot] = expert
                slot += 1
    return experts


def place_balanced(demand: ExpertDemand, cluster: DeviceGroup) -> ExpertPlacement:
    """Return the placement with the least largest load, and its shares.

    The unknown part of a demand counts as spread evenly. With no more experts than devices, and room for two
    experts on each, no device gets more than the mean, rounded up. With more experts it is a heuristic.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    full = demand.filled()
    parts = balanced_parts(full.loads, cluster.devices, cluster.most_per_device)
    return ExpertPlacement.of_parts(parts, cluster.most_per_device)


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
    used = np.zeros(devices, np.int64)
    for expert in order[::-1]:
        best = -1
        for device in range(devices):
            if used[device] < slots and (best < 0 or held[device] < held[best]):
                best = device
        parts[best, expert] = loads[expert]
        held[best] += loads[expert]
        used[best] += 1
    return parts


def place_local(demand: ExpertDemand, cluster: DeviceGroup) -> ExpertPlacement:
    """Return the placement by which the fewest tokens travel, among the most even ones tried.

    For k = 0, 1, ... the k most popular experts are on all devices, each of which processes its own tokens of
    them; the others are placed as by `place_balanced` (k = 0: all of them). Travelling tokens are counted for
    the device that sends or receives the most, since it decides the time of an all-to-all. All ranks are
    assumed to have equal tokens.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    parts = _place(demand.filled().loads, cluster.devices, cluster.most_per_device)
    return ExpertPlacement.of_parts(parts, cluster.most_per_device)


@kernel
def _place(loads: Ints, devices: int, slots: int) -> Ints:
    """Return the parts of the loads, (devices, experts); -1 where a device lacks the expert."""
    order = np.argsort(-loads, kind="mergesort")
    if loads.size <= slots:
        return _spread(loads, order, loads.size, devices, slots)
    best = balanced_parts(loads, devices, slots)
    least, fewest = largest_load(best), _travelling(loads, best)
    for common in range(1, slots - _SLOTS_TO_BALANCE + 1):
        if loads.size - common > devices * (slots - common) or loads[order[common - 1]] == 0:
            break
        parts = _spread(loads, order, common, devices, slots)
        largest, travelling = largest_load(parts), _travelling(loads, parts)
        if largest * _AS_EVEN <= least * (_AS_EVEN + 1) and travelling < fewest:
            best, fewest = parts, travelling
            least = min(least, largest)
    return best


@kernel
def _spread(loads: Ints, order: Ints, common: int, devices: int, slots: int) -> Ints:
    """Return parts with the first `common` experts of an order on all devices, the others balanced."""
    parts = np.full((devices, loads.size), -1, np.int64)
    for expert in order[:common]:
        each, left = loads[expert] // devices, loads[expert] % devices
        for device in range(devices):
            parts[device, expert] = each + (1 if device < left else 0)
    others = np.sort(order[common:])
    if others.size > 0:
        balanced = balanced_parts(loads[others], devices, slots - common)
        for place in range(others.size):
            parts[:, others[place]] = balanced[:, place]
    return parts


@kernel
def _travelling(loads: Ints, parts: Ints) -> int:
    """Return the tokens that the busiest device sends or receives, times the number of devices."""
    devices = parts.shape[0]
    most = np.int64(0)
    for device in range(devices):
        sent, received = np.int64(0), np.int64(0)
        for expert in range(loads.size):
            if parts[device, expert] < 0:
                sent += loads[expert]
            else:
                received += max(parts[device, expert] * devices - loads[expert], 0)
                sent += max(loads[expert] - parts[device, expert] * devices, 0)
        most = max(most, sent, received)
    return int(most)
