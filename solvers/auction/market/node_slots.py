"""Scans of a zone's node-slots (slot, node): free capacity, prices, and the cheapest in each slot.

A task may use node-slots of several classes, each with its own samples per slot.
"""

from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.compiled import Floats, Ints, kernel


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
    """Count node-slots that a task might use: with room, on a closed node, without compute, without memory;
    each counted once."""
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
