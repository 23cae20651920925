"""Taken part of each class of nodes per slot, the room left, and the units in which both are counted.

Units are equal for all classes of nodes: a node has one unit per sample that it trains in a slot.

A task with a share s of a node's compute takes s times the node's units of compute. So on any class, its
whole work takes one unit per sample. Memory is counted likewise: a share of a node's memory has the units of
the same share of its compute. A price per unit is then one number for nodes of any speed, and the price of a
node-slot of a class is that number times the class's units.
"""

from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.node_slots import NodeSlotIndices
from solvers.auction.market.window import Window
from solvers.compiled import Bools, Floats, Ints, kernel


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

    Taken room stays used: if a node grows from M to N GiB, tasks may hold T GiB at U / M units each, and
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


class Ahead(NamedTuple):
    """Room in units, and demand, of the span ahead."""

    free: float
    whole: float
    """Room of all open nodes there."""
    expected_slots: float
    """Expected demand there, in slots of mean demand."""


class MarketRoom:
    """Room of one zone's market, in units."""

    def __init__(self, market: Market) -> None:
        self._market = market
        classes = market.fleet.classes
        self.node_units = np.array([c.capacity_samples for c in classes])
        """Units of a slot of a node, (classes,)."""
        self.nodes = np.array([float(c.stop - c.start) for c in classes])
        """Number of nodes, (classes,)."""
        self._class_units = self.nodes * self.node_units
        self._units_per_slot = float(self._class_units.sum())
        self._bounds = np.array([c.start for c in classes] + [len(market.fleet.nodes)], np.int64)
        self.used = np.zeros((2, market.horizon_slots, len(classes)))
        """Taken part of the compute and of the memory of each class, (2, slots, classes)."""
        self.measure()

    @property
    def units_per_slot(self) -> float:
        """Units of all nodes of the zone, up or not."""
        return self._units_per_slot

    def measure(self) -> None:
        """Read the used parts from the market."""
        market = self._market
        for index, (free, capacity) in enumerate(
            ((market.free_samples, market.capacity_samples), (market.free_gib, market.capacity_gib))
        ):
            _measure_used(free, capacity, self._bounds, self.used[index])

    def count(self, placement: Placement, demand: Demand, sign: float) -> float:
        """Add the room that a plan takes, or subtract released room with a sign of -1.

        Returns:
            The mean share of a node that the plan takes: of compute or of memory, the larger one.
        """
        return _count(self._market.locate(placement), demand, sign, self.nodes, self.used)

    def used_units(self, slots: int) -> tuple[float, float]:
        """Return the used units of compute and of memory over the first slots."""
        compute, memory = _weighted_sums(self.used, slots, self._class_units)
        return compute, memory

    def ahead(self, slots: int, compute_part: float, packed_part: float) -> tuple[float, float]:
        """Return the free and the total units over the first slots, on nodes that are up.

        Args:
            compute_part: part of compute in a unit; the rest is memory.
            packed_part: part of a node that tasks can take. The rest is not free; the free units are
                negative where it is taken nevertheless.
        """
        market = self._market
        whole = _open_units(market.capacity_samples, market.node_up, market.node_open) * slots
        compute, memory = self.used_units(slots)
        return packed_part * whole - (compute_part * compute + (1 - compute_part) * memory), whole


@kernel
def _weighted_sums(used: Floats, slots: int, class_units: Floats) -> tuple[float, float]:
    """Return the weighted sums of compute and of memory over the first slots.

    The order is fixed, since numpy's sum depends on the machine's vector width.
    """
    sums = np.zeros(2)
    for resource in range(2):
        for slot in range(slots):
            for index in range(used.shape[2]):
                sums[resource] += used[resource, slot, index] * class_units[index]
    return sums[0], sums[1]


@kernel
def _measure_used(free: Floats, capacity: Floats, bounds: Ints, used: Floats) -> None:
    for slot in range(free.shape[0]):
        for index in range(bounds.size - 1):
            total = 0.0
            for row in range(bounds[index], bounds[index + 1]):
                total += 1.0 - free[slot, row] / capacity[row]
            used[slot, index] = total / (bounds[index + 1] - bounds[index])


@kernel
def _open_units(capacity: Floats, node_up: Bools, node_open: Bools) -> float:
    """Return the room of the nodes that are up and open: whole numbers, so their order does not matter."""
    units = 0.0
    for row in range(capacity.size):
        if node_up[row] and node_open[row]:
            units += capacity[row]
    return units


@kernel
def _count(at: NodeSlotIndices, demand: Demand, sign: float, nodes: Floats, used: Floats) -> float:
    shares = 0.0
    for place in range(at.columns.size):
        column, index = at.columns[place], at.classes[place]
        if not 0 <= column < used.shape[1]:
            raise IndexError("a node-slot of the placement is outside the market's window")
        used[0, column, index] += sign * demand.compute_share[index] / nodes[index]
        used[1, column, index] += sign * demand.memory_share[index] / nodes[index]
        shares += max(demand.compute_share[index], demand.memory_share[index])
    return shares / max(at.columns.size, 1)
