"""Cost of changing a placement: weights of experts that devices must load."""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.placement import Placement
from solvers.experts.splitting import slots_of_experts


def loads_to_swap_in(placement: Placement, before: Placement | None) -> Ints:
    """(devices,) experts that each device has to load, since it did not have them before.

    Args:
        before: what is loaded; None where nothing is.
    """
    has = placement.held()
    if before is not None:
        has &= ~before.held()
    loads: Ints = has.sum(axis=1)
    return loads


def near(placement: Placement, before: Placement) -> Placement:
    """The same placement with the devices renumbered, so that few experts have to be loaded.

    Devices are equal, so any may have the experts of any other. Pairs of an old and a new device that have
    the most experts in common are matched first, ties by number; where that takes more loads than the
    numbers as they are, these stay. A match of the fewest loads would take an assignment problem.

    Raises:
        ValueError: the placements are of other numbers of devices or experts.
    """
    if (placement.devices, placement.count) != (before.devices, before.count):
        raise ValueError(
            f"{placement.count} experts on {placement.devices} devices after {before.count} on "
            f"{before.devices}: both must be as many"
        )
    common = _common(before.experts, placement.experts, placement.count)
    order = _matched(common)
    rows = np.arange(placement.devices)
    if common[rows, order].sum() <= np.trace(common):
        return placement
    return Placement(placement.experts[order], placement.shares[order], placement.count)


@kernel
def _common(before: Ints, after: Ints, count: int) -> Ints:
    """(devices, devices) how many experts each old device, by row, has in common with each new one.

    Args:
        before: (devices, slots) experts, `FREE` in empty slots.
        after: the same of the new placement; the slots may be others.
        count: how many experts there are.
    """
    devices, slots = after.shape
    starts, having = slots_of_experts(after, count)
    common = np.zeros((before.shape[0], devices), np.int64)
    for device in range(before.shape[0]):
        for expert in before[device]:
            if expert >= 0:
                for place in range(starts[expert], starts[expert + 1]):
                    common[device, having[place] // slots] += 1
    return common


@kernel
def _matched(common: Ints) -> Ints:
    """(devices,) for each row a column of its own, those with the largest entries first. Rows and columns
    that have nothing in common with what is left are matched in order."""
    devices = common.shape[0]
    ends = np.zeros(common.max() + 2, np.int64)
    for row in range(devices):
        for column in range(devices):
            ends[common[row, column]] += 1
    ends[0] = 0
    ends = ends[::-1].cumsum()[::-1]  # of each value, how many entries are as large
    places = np.empty(ends[0], np.int64)
    nexts = ends[1:].copy()
    for place in range(devices * devices):
        value = common[place // devices, place % devices]
        if value:
            places[nexts[value]] = place
            nexts[value] += 1
    order = np.full(devices, -1, np.int64)
    is_taken = np.zeros(devices, np.bool_)
    for place in places:
        device, other = place // devices, place % devices
        if order[device] < 0 and not is_taken[other]:
            order[device] = other
            is_taken[other] = True
    free = 0
    for device in range(devices):
        if order[device] < 0:
            while is_taken[free]:
                free += 1
            order[device] = free
            is_taken[free] = True
    return order
