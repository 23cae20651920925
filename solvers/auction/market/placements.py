"""Kernels over the node-slots of one placement: its room, its use, and its cost."""

from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.compiled import Bools, Floats, Ints, kernel


class NodeSlotIndices(NamedTuple):
    """Indices of node-slots in a market's arrays; all of shape (node-slots,)."""

    columns: Ints
    rows: Ints
    classes: Ints


class Uses(NamedTuple):
    """Resources that a task uses in each node-slot of a placement."""

    compute_shares: Floats
    """Share of compute, (node-slots,)."""
    memory_shares: Floats
    """Share of memory, (node-slots,)."""
    operational: Floats
    """Operational cost in whole micros, rounded up, (node-slots,)."""
    compute_price: float
    """Highest price of the node-slots, in micros per node-slot."""
    memory_price: float
    samples: int
    """Total samples."""


@kernel
def open_slots(
    closes_at: Ints, node_up: Bools, node_open: Bools, first_slot: int, start: int, stop: int
) -> Ints:
    """Return the number of columns from `start` to before `stop` in which each node is open, (rows,)."""
    counts = np.zeros(closes_at.size, np.int64)
    for row in range(closes_at.size):
        if node_up[row] and node_open[row]:
            counts[row] = min(max(closes_at[row] - (first_slot + start), 0), stop - start)
    return counts


@kernel
def _refuse_beyond(at: NodeSlotIndices, free: Floats) -> None:
    for place in range(at.columns.size):
        if not (0 <= at.columns[place] < free.shape[0] and 0 <= at.rows[place] < free.shape[1]):
            raise IndexError("a node-slot of the placement is outside the market's window")


@kernel
def has_room(
    at: NodeSlotIndices, demand: Demand, free_samples: Floats, free_gib: Floats, open_slots: Ints
) -> bool:
    """Return whether each node-slot is open and has the compute and the memory.

    Raises:
        IndexError: a node-slot is outside the window.
    """
    _refuse_beyond(at, free_samples)
    for place in range(at.columns.size):
        column, row = at.columns[place], at.rows[place]
        if (
            column >= open_slots[row]
            or free_samples[column, row] < demand.samples[at.classes[place]]
            or free_gib[column, row] < demand.memory_gib
        ):
            return False
    return True


@kernel
def take(at: NodeSlotIndices, demand: Demand, sign: int, free_samples: Floats, free_gib: Floats) -> None:
    """Take the room of node-slots, or release it with a sign of -1.

    Raises:
        IndexError: a node-slot is outside the window.
    """
    _refuse_beyond(at, free_samples)
    for place in range(at.columns.size):
        column, row = at.columns[place], at.rows[place]
        free_samples[column, row] -= sign * demand.samples[at.classes[place]]
        free_gib[column, row] -= sign * demand.memory_gib


@kernel
def uses(
    at: NodeSlotIndices, demand: Demand, full_costs: Floats, compute_price: Floats, memory_price: Floats
) -> Uses:
    """Return the least resources that a task uses in one node-slot, and the highest prices there.

    Args:
        full_costs: (slots, classes) micros of a fully used node.
        compute_price, memory_price: (slots, rows) micros per node-slot.

    Raises:
        IndexError: a node-slot is outside the window.
    """
    _refuse_beyond(at, compute_price)
    count = at.columns.size
    compute_shares, memory_shares, operational = np.empty(count), np.empty(count), np.empty(count)
    highest_compute, highest_memory = -np.inf, -np.inf
    samples = 0
    for place in range(count):
        column, row, index = at.columns[place], at.rows[place], at.classes[place]
        compute_shares[place] = demand.compute_share[index]
        memory_shares[place] = demand.memory_share[index]
        operational[place] = np.ceil(full_costs[column, index] * demand.compute_share[index])
        highest_compute = max(highest_compute, compute_price[column, row])
        highest_memory = max(highest_memory, memory_price[column, row])
        samples += demand.samples[index]
    return Uses(compute_shares, memory_shares, operational, highest_compute, highest_memory, samples)
