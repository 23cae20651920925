"""Use of free slots of a placement, so that fewer tokens have to travel.

A token whose expert is on its own device needs no all-to-all. The thesis requires of a placement only even
loads. But a device that also has the most popular experts keeps most of its tokens, and with more replicas
tokens can be split at least as evenly.
"""

import numpy as np

from solvers.compiled import Floats, Ints, kernel
from solvers.experts.placement import FREE, Demand, Placement

_KEPT_WEIGHT, _NEW_WEIGHT = 5, 4
"""Weights of loaded and of new experts: a new one must have a quarter more tokens than a loaded one."""


def fill_popular(placement: Placement, demand: Demand, loaded: Placement) -> Placement:
    """Fill the free slots of each device with the most popular experts that it lacks.

    An expert without demand is not added. Experts that a device has from the batch before are preferred.
    Shares stay: tokens are to be split again.

    Args:
        loaded: placement of the loaded experts, on as many devices.
    """
    worth = np.where(loaded.held(), _KEPT_WEIGHT, _NEW_WEIGHT) * demand.loads
    return _with(placement, worth)


def fill_loaded(placement: Placement, demand: Demand, loaded: Placement) -> Placement:
    """Fill free slots with experts that the devices have already, the most popular first, without loads."""
    return _with(placement, np.where(loaded.held(), demand.loads, 0))


def fill_nothing(placement: Placement, demand: Demand, loaded: Placement) -> Placement:
    """Return the placement unchanged."""
    del demand, loaded
    return placement


def _with(placement: Placement, worth: Ints) -> Placement:
    """Add the experts of the largest worth.

    Args:
        worth: (devices, experts) worth of one more expert on a device; 0 for experts not to be added.
    """
    experts, shares = placement.experts.copy(), placement.shares.copy()
    _fill(experts, shares, np.where(placement.held(), 0, worth))
    return Placement(experts, shares, placement.count)


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
        taken = (experts[device] != FREE).sum()
        while taken < slots and worth[device].max() > 0:
            expert = worth[device].argmax()
            worth[device, expert] = 0
            slot = taken
            while slot > 0 and experts[device, slot - 1] > expert:
                experts[device, slot] = experts[device, slot - 1]
                shares[device, slot] = shares[device, slot - 1]
                slot -= 1
            experts[device, slot] = expert
            shares[device, slot] = 0.0
            taken += 1
