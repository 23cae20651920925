"""Slots that a placement leaves free, used so that fewer tokens have to travel.

A token whose expert is on its own device needs no all-to-all. The thesis asks of a placement only that loads
are even; but a device that has the most popular experts beside those that it is to have keeps most of its
tokens, and with more replicas tokens can be split at least as evenly.
"""

import numpy as np

from solvers.compiled import Floats, Ints, kernel
from solvers.experts.placement import FREE, Demand, Placement

_KEPT_WEIGHT, _NEW_WEIGHT = 5, 4
"""An expert that has to be loaded is worth it if it has a quarter more tokens than one that is there."""


def fill_popular(placement: Placement, demand: Demand, loaded: Placement) -> Placement:
    """With the most popular experts in the slots that are free, on each device those that it lacks.

    One that nobody asks for is not added. Those that a device has by the batch before are preferred. Shares
    stay: tokens are to be split anew.

    Args:
        loaded: what the devices have, as many as the placement's.
    """
    worth = np.where(loaded.held(), _KEPT_WEIGHT, _NEW_WEIGHT) * demand.loads
    return _with(placement, worth)


def fill_loaded(placement: Placement, demand: Demand, loaded: Placement) -> Placement:
    """With experts that devices have already, the most popular first: nothing is to be loaded for it."""
    return _with(placement, np.where(loaded.held(), demand.loads, 0))


def fill_nothing(placement: Placement, demand: Demand, loaded: Placement) -> Placement:
    """The placement as it is."""
    del demand, loaded
    return placement


def _with(placement: Placement, worth: Ints) -> Placement:
    """
    Args:
        worth: (devices, experts) of an expert more on a device; of what is not worth anything, 0.
    """
    experts, shares = placement.experts.copy(), placement.shares.copy()
    _fill(experts, shares, np.where(placement.held(), 0, worth))
    return Placement(experts, shares, placement.count)


@kernel
def _fill(experts: Ints, shares: Floats, worth: Ints) -> None:
    """Puts the experts of the largest worth into free slots, ties by index.

    Args:
        experts: (devices, slots) is changed, ascending as before.
        shares: (devices, slots) move with their experts.
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
