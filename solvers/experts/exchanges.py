"""Improvement of a placement by exchanges: one expert of the busiest device for one of another device."""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.splitting import split_evenly

_MAX_SLOTS_TRIED = 2_048
"""Bound on exchanges tried, times slots of the cluster. For a few devices this covers all exchanges several
times; with 64 devices a single exchange changes little."""


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
            taken = free if free >= 0 else slot
            before = experts[device, taken]
            experts[other, other_slot] = mine
            if theirs >= 0:
                experts[device, taken] = theirs
            new = split_evenly(experts, loads).sum(axis=1)
            tries -= 1
            if new.max() < largest or (new.max() == largest and (new == largest).sum() < busiest):
                loads_of_devices[:] = new
                return tries
            experts[other, other_slot] = theirs
            experts[device, taken] = before
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
