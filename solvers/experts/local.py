"""Balanced placement that keeps tokens on their devices.

A token whose expert is on its own device needs no all-to-all. So the most popular experts are put on every
device, and the others are balanced in the remaining slots: only their tokens travel, and the devices get
equally many. The number of experts on every device is searched.
"""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.balanced import balanced_parts
from solvers.experts.exchanges import largest_load
from solvers.experts.placement import Cluster, Demand, Placement

_SLOTS_TO_BALANCE = 2
"""With so many slots on each device, and no more experts than devices, any loads can be balanced."""
_AS_EVEN = 100
"""Tolerance: a largest load counts as the least if it exceeds it by at most 1/100."""


def place_local(demand: Demand, cluster: Cluster) -> Placement:
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
    return Placement.of_parts(parts, cluster.most_per_device)


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
