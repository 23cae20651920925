"""Kernels over the node-slots (slot, node) of a zone: scans of free capacity and prices, the node-slots of
one placement, and the order of nodes by price.

A task may use node-slots of several classes, each with its own samples per slot.
"""

from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.compiled import Bools, Floats, Ints, kernel


class NodeSlots(NamedTuple):
    """Consecutive slots of a market, all nodes; arrays of node-slots have shape (slots, nodes)."""

    compute_price: Floats
    memory_price: Floats
    free_samples: Floats
    free_gib: Floats
    open_slots: Ints
    """Number of slots, from the first on, in which something may be planned on a node, (nodes,): 0 if it is
    down, cordoned or about to leave."""
    class_bounds: Ints
    """Index of the first node of each class, (classes + 1,); the last entry is the number of nodes."""
    by_price: Ints
    """Rows by price, (slots, nodes): see `PriceOrder.rows`."""
    memory_ahead: Floats
    """Least memory prices, (slots, nodes): see `PriceOrder.memory_ahead`."""


class Fronts(NamedTuple):
    """Node-slots with room, per slot and class, that no other one undercuts in both prices.

    A group is a slot and a class, number `slot * classes + class`. Within a group compute prices ascend and
    memory prices descend.
    """

    start: Ints
    """Index of the first entry of each group in the following arrays, (groups + 1,)."""
    compute: Floats
    memory: Floats
    nodes: Ints


@kernel
def price_fronts(node_slots: NodeSlots, demand: Demand) -> Fronts:
    """Return the fronts of the node-slots with room for a task (erratum P2: without room, no offer).

    Node-slots of a class differ only in their prices, so a schedule needs no others. Of equal node-slots the
    first node is kept.
    """
    slots, all_nodes = node_slots.compute_price.shape
    classes = node_slots.class_bounds.size - 1
    start = np.zeros(slots * classes + 1, np.int64)
    capacity = slots * classes * 4 + all_nodes
    compute = np.empty(capacity)
    memory = np.empty(capacity)
    nodes = np.empty(capacity, np.int64)
    filled = 0
    for slot in range(slots):
        if filled + all_nodes > compute.size:
            compute = np.concatenate((compute, np.empty(compute.size)))
            memory = np.concatenate((memory, np.empty(memory.size)))
            nodes = np.concatenate((nodes, np.empty(nodes.size, np.int64)))
        for index in range(classes):
            if demand.samples[index] > 0:
                least_memory = np.inf
                for place in range(node_slots.class_bounds[index], node_slots.class_bounds[index + 1]):
                    if node_slots.memory_ahead[slot, place] >= least_memory:
                        break
                    node = node_slots.by_price[slot, place]
                    if (
                        node_slots.memory_price[slot, node] >= least_memory
                        or slot >= node_slots.open_slots[node]
                        or node_slots.free_samples[slot, node] < demand.samples[index]
                        or node_slots.free_gib[slot, node] < demand.memory_gib
                    ):
                        continue
                    least_memory = node_slots.memory_price[slot, node]
                    compute[filled], memory[filled] = node_slots.compute_price[slot, node], least_memory
                    nodes[filled] = node
                    filled += 1
            start[slot * classes + index + 1] = filled
    return Fronts(start, compute[:filled], memory[:filled], nodes[:filled])


@kernel
def additive_costs(node_slots: NodeSlots, demand: Demand, operational: Floats) -> Floats:
    """Return the least s lambda + r phi + e per slot and class over *all* node-slots, without room too
    (erratum P8).

    `operational` and the result have shape (slots, classes); infinite where the class cannot run the task.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    for slot in range(slots):
        for index in range(classes):
            if demand.samples[index] == 0:
                continue
            least = np.inf
            for place in range(node_slots.class_bounds[index], node_slots.class_bounds[index + 1]):
                node = node_slots.by_price[slot, place]
                compute = node_slots.compute_price[slot, node] * demand.compute_share[index]
                if compute + node_slots.memory_ahead[slot, place] * demand.memory_share[index] >= least:
                    break
                least = min(least, compute + node_slots.memory_price[slot, node] * demand.memory_share[index])
            costs[slot, index] = least + operational[slot, index]
    return costs


@kernel
def fullest_row(node_slots: NodeSlots, demand: Demand, slot: int, index: int) -> int:
    """Return the fullest node of a class that has room for a task, so that large tasks still find nodes; or
    -1.

    The fullest node has the least compute free, then the least memory, then the first row.
    """
    best = -1
    least = (np.inf, np.inf)
    for row in range(node_slots.class_bounds[index], node_slots.class_bounds[index + 1]):
        free = (node_slots.free_samples[slot, row], node_slots.free_gib[slot, row])
        if (
            slot < node_slots.open_slots[row]
            and free[0] >= demand.samples[index]
            and free[1] >= demand.memory_gib
            and free < least
        ):
            best, least = row, free
    return best


@kernel
def fullest_rows(node_slots: NodeSlots, demand: Demand) -> Ints:
    """Return the `fullest_row` of each class, (slots, classes); -1 if no node has room, or the class cannot
    run the task."""
    slots, classes = node_slots.free_samples.shape[0], demand.samples.size
    rows = np.full((slots, classes), -1, np.int64)
    for slot in range(slots):
        for index in range(classes):
            if demand.samples[index] > 0:
                rows[slot, index] = fullest_row(node_slots, demand, slot, index)
    return rows


@kernel
def count_room(node_slots: NodeSlots, demand: Demand) -> tuple[int, int, int, int]:
    """Count the node-slots that a task might use: those with room; those on a closed node; of the rest, those
    without compute; and those that only lack memory."""
    slots = node_slots.free_samples.shape[0]
    all_of_them = is_open = with_compute = with_room = 0
    for index in range(node_slots.class_bounds.size - 1):
        if demand.samples[index] == 0:
            continue
        start, stop = node_slots.class_bounds[index], node_slots.class_bounds[index + 1]
        needed_samples = float(demand.samples[index])
        open_slots = node_slots.open_slots[start:stop]
        all_of_them += slots * (stop - start)
        # Without branches or offsets, so that several nodes are counted in one instruction.
        for slot in range(slots):
            free_samples = node_slots.free_samples[slot, start:stop]
            free_gib = node_slots.free_gib[slot, start:stop]
            for node in range(stop - start):
                here = int(slot < open_slots[node])
                is_open += here
                here &= int(free_samples[node] >= needed_samples)
                with_compute += here
                with_room += here & int(free_gib[node] >= demand.memory_gib)
    return with_room, all_of_them - is_open, is_open - with_compute, with_compute - with_room


@kernel
def slots_until_done(node_slots: NodeSlots, demand: Demand) -> int:
    """Return the least number of slots, from the first on, whose room suffices for the work, or -1."""
    done = 0
    for slot in range(node_slots.free_samples.shape[0]):
        possible = 0
        for index in range(node_slots.class_bounds.size - 1):
            if demand.samples[index] <= possible:
                continue
            for node in range(node_slots.class_bounds[index], node_slots.class_bounds[index + 1]):
                if (
                    slot < node_slots.open_slots[node]
                    and node_slots.free_samples[slot, node] >= demand.samples[index]
                    and node_slots.free_gib[slot, node] >= demand.memory_gib
                ):
                    possible = demand.samples[index]
                    break
        done += possible
        if done >= demand.work_samples:
            return slot + 1
    return -1


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
def change_free(
    at: NodeSlotIndices, demand: Demand, sign: int, free_samples: Floats, free_gib: Floats
) -> None:
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


class PriceOrder:
    """Rows of each slot and class, from the lowest compute price to the highest, kept up to date, so that a
    search reads only the cheapest few. The order follows from the prices, so it is in no snapshot."""

    def __init__(self, class_bounds: Ints, compute_price: Floats, memory_price: Floats) -> None:
        """Sort the rows by the prices, of shape (slots, rows); both arrays are read again later."""
        self._class_bounds = class_bounds
        self._compute_price = compute_price
        self._memory_price = memory_price
        self.rows = np.empty(compute_price.shape, np.int64)
        """Rows by compute price, memory price and number within each class's bounds, (slots, rows)."""
        self.memory_ahead = np.empty(compute_price.shape)
        """Least memory price from this index in `rows` to the end of its class, (slots, rows)."""
        self.sort(0)

    def sort(self, first_column: int) -> None:
        """Sort the slots from `first_column` on again."""
        for index in range(self._class_bounds.size - 1):
            begin, end = self._class_bounds[index], self._class_bounds[index + 1]
            compute = self._compute_price[first_column:, begin:end]
            memory = self._memory_price[first_column:, begin:end]
            order = np.lexsort(np.array((memory, compute)))
            self.rows[first_column:, begin:end] = begin + order
            sorted_memory = np.take_along_axis(memory, order, axis=1)
            self.memory_ahead[first_column:, begin:end] = np.minimum.accumulate(
                sorted_memory[:, ::-1], axis=1
            )[:, ::-1]

    def advance(self, passed_slots: int) -> None:
        """Update the order after the window has moved by so many slots."""
        kept = len(self.rows) - passed_slots
        self.rows[:kept] = self.rows[passed_slots:]
        self.memory_ahead[:kept] = self.memory_ahead[passed_slots:]
        self.sort(kept)

    def rise(self, columns: Ints, rows: Ints, classes: Ints) -> None:
        """Update the order after the prices of some node-slots, one per slot, have risen."""
        _move_risen(
            self._compute_price,
            self._memory_price,
            self._class_bounds,
            self.rows,
            self.memory_ahead,
            columns,
            rows,
            classes,
        )


@kernel
def _move_risen(
    compute_price: Floats,
    memory_price: Floats,
    class_bounds: Ints,
    order: Ints,
    memory_ahead: Floats,
    columns: Ints,
    rows: Ints,
    classes: Ints,
) -> None:
    for risen in range(columns.size):
        slot, row, index = columns[risen], rows[risen], classes[risen]
        begin, end = class_bounds[index], class_bounds[index + 1]
        place = begin
        while order[slot, place] != row:
            place += 1
        mine = (compute_price[slot, row], memory_price[slot, row], row)
        while place + 1 < end:
            after = order[slot, place + 1]
            if mine < (compute_price[slot, after], memory_price[slot, after], after):
                break
            order[slot, place] = after
            place += 1
        order[slot, place] = row
        least = np.inf
        for place in range(end - 1, begin - 1, -1):
            least = min(least, memory_price[slot, order[slot, place]])
            memory_ahead[slot, place] = least
