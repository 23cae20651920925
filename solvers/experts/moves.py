"""Changes of a placement: few weights to load, and free slots used so that fewer tokens have to travel."""

import numpy as np

from solvers.compiled import Floats, Ints, kernel
from solvers.experts.placement import FREE, ExpertDemand, ExpertPlacement
from solvers.experts.splitting import slots_of_experts

_KEPT_WEIGHT, _NEW_WEIGHT = 5, 4
"""Weights of loaded and of new experts: a new one must have a quarter more tokens than a loaded one."""


def near(placement: ExpertPlacement, before: ExpertPlacement) -> ExpertPlacement:
    """Renumber the devices of a placement so that few experts have to be loaded.

    Devices are equal, so any may have the experts of any other. Pairs of an old and a new device with the
    most experts in common are matched first, ties by number. If that takes more loads than the present
    numbers, these stay. The fewest loads would require an assignment problem.

    Raises:
        ValueError: the placements differ in their number of devices or experts.
    """
    if (placement.devices, placement.count) != (before.devices, before.count):
        raise ValueError(
            f"{placement.count} experts on {placement.devices} devices after {before.count} on "
            f"{before.devices}: both numbers must be equal"
        )
    common = _common(before.experts, placement.experts, placement.count)
    order = _matched(common)
    rows = np.arange(placement.devices)
    if common[rows, order].sum() <= np.trace(common):
        return placement
    return ExpertPlacement(placement.experts[order], placement.shares[order], placement.count)


@kernel
def _common(before: Ints, after: Ints, count: int) -> Ints:
    """Count the experts that each old device (row) has in common with each new one, (devices, devices).

    Args:
        before: (devices, slots) experts, `FREE` in empty slots.
        after: the same of the new placement; its number of slots may differ.
        count: number of experts.
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
    """Match each row with a column of its own, (devices,), those with the largest entries first. Rows and
    columns without a common expert are matched in order."""
    devices = common.shape[0]
    ends = np.zeros(common.max() + 2, np.int64)
    for row in range(devices):
        for column in range(devices):
            ends[common[row, column]] += 1
    ends[0] = 0
    ends = ends[::-1].cumsum()[::-1]  # number of entries at least as large, by value
    places = np.empty(ends[0], np.int64)
    nexts = ends[1:].copy()
    for place in range(devices * devices):
        value = common[place // devices, place % devices]
        if value:
            places[nexts[value]] = place
            nexts[value] += 1
    order = np.full(devices, -1, np.int64)
    is_used = np.zeros(devices, np.bool_)
    for place in places:
        device, other = place // devices, place % devices
        if order[device] < 0 and not is_used[other]:
            order[device] = other
            is_used[other] = True
    free = 0
    for device in range(devices):
        if order[device] < 0:
            while is_used[free]:
                free += 1
            order[device] = free
            is_used[free] = True
    return order


def fill_popular(
    placement: ExpertPlacement, demand: ExpertDemand, loaded: ExpertPlacement
) -> ExpertPlacement:
    """Fill the free slots of each device with the most popular experts that it lacks.

    An expert without demand is not added. Experts that a device has from the batch before are preferred.
    Shares stay: tokens are to be split again.

    Args:
        loaded: placement of the loaded experts, on as many devices.
    """
    worth = np.where(loaded.held(), _KEPT_WEIGHT, _NEW_WEIGHT) * demand.loads
    return _with(placement, worth)


def fill_loaded(placement: ExpertPlacement, demand: ExpertDemand, loaded: ExpertPlacement) -> ExpertPlacement:
    """Fill free slots with experts that the devices have already, the most popular first, without loads."""
    return _with(placement, np.where(loaded.held(), demand.loads, 0))


def fill_nothing(
    placement: ExpertPlacement, demand: ExpertDemand, loaded: ExpertPlacement
) -> ExpertPlacement:
    """Return the placement unchanged."""
    del demand, loaded
    return placement


def _with(placement: ExpertPlacement, worth: Ints) -> ExpertPlacement:
    """Add the experts of the largest worth.

    Args:
        worth: (devices, experts) worth of one more expert on a device; 0 for experts not to be added.
    """
    experts, shares = placement.experts.copy(), placement.shares.copy()
    _fill(experts, shares, np.where(placement.held(), 0, worth))
    return ExpertPlacement(experts, shares, placement.count)


@kernel
def _fill(experts: Ints, shares: Floats, worth: Ints) -> None:
    """Put the experts of the largest worth into free slots, ties by index.

    Args:
        experts: (devices, slots) is changed, ascending as before.
        shares: (devices, slots) is moved with the experts.
        worth: (devices, experts) is set to 0 where an expert is added.
    """
    devices, slots = experts.shape
    for device in range(devices):
        used = (experts[device] != FREE).sum()
        while used < slots and worth[device].max() > 0:
            expert = worth[device].argmax()
            worth[device, expert] = 0
            slot = used
            while slot > 0 and experts[device, slot - 1] > expert:
                experts[device, slot] = experts[device, slot - 1]
                shares[device, slot] = shares[device, slot - 1]
                slot -= 1
            experts[device, slot] = expert
            shares[device, slot] = 0.0
            used += 1
