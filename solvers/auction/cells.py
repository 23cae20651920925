"""Scans of a zone's cells (slot, node): which have room, at what prices, and how cheap each slot is.

A task may use cells of several classes, each with its own samples per slot.
"""

from typing import NamedTuple

import numpy as np

from solvers.arrays import Bools, Floats, Ints
from solvers.auction.demand import Demand
from solvers.compiled import kernel


class Cells(NamedTuple):
    """Neighbouring slots of a market, all nodes; arrays of cells have shape (slots, nodes)."""

    compute_price: Floats
    memory_price: Floats
    free_samples: Floats
    free_gib: Floats
    node_up: Bools
    """(nodes,)"""
    class_bounds: Ints
    """(classes + 1,) where each class begins among the nodes; the last entry is their number."""
    by_price: Ints
    """(slots, nodes) see `PriceOrder.rows`."""
    memory_ahead: Floats
    """(slots, nodes) see `PriceOrder.memory_ahead`."""


class Fronts(NamedTuple):
    """Per slot and class, the cells with room that no other such cell undercuts in both prices.

    A group is a slot and a class, number `slot * classes + class`. Within a group compute prices ascend and
    memory prices descend.
    """

    start: Ints
    """(groups + 1,) where each group begins in the arrays that follow."""
    compute: Floats
    memory: Floats
    nodes: Ints


@kernel
def price_fronts(cells: Cells, demand: Demand) -> Fronts:
    """The fronts of the cells with room for a task (erratum P2: without room, no offer).

    Cells of a class differ only in their prices, so a schedule needs no others. Of equal cells the first node
    is kept.
    """
    slots, all_nodes = cells.compute_price.shape
    classes = cells.class_bounds.size - 1
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
                for place in range(cells.class_bounds[index], cells.class_bounds[index + 1]):
                    if cells.memory_ahead[slot, place] >= least_memory:
                        break
                    node = cells.by_price[slot, place]
                    if (
                        cells.memory_price[slot, node] >= least_memory
                        or not cells.node_up[node]
                        or cells.free_samples[slot, node] < demand.samples[index]
                        or cells.free_gib[slot, node] < demand.memory_gib
                    ):
                        continue
                    least_memory = cells.memory_price[slot, node]
                    compute[filled], memory[filled] = cells.compute_price[slot, node], least_memory
                    nodes[filled] = node
                    filled += 1
            start[slot * classes + index + 1] = filled
    return Fronts(start, compute[:filled], memory[:filled], nodes[:filled])


@kernel
def additive_costs(cells: Cells, demand: Demand, operational: Floats) -> Floats:
    """Per slot and class, the least s lambda + r phi + e over *all* cells, without room too (erratum P8).

    `operational` and the result have shape (slots, classes); infinite where the class cannot run the task.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    for slot in range(slots):
        for index in range(classes):
            if demand.samples[index] == 0:
                continue
            least = np.inf
            for place in range(cells.class_bounds[index], cells.class_bounds[index + 1]):
                node = cells.by_price[slot, place]
                compute = cells.compute_price[slot, node] * demand.compute_share[index]
                if compute + cells.memory_ahead[slot, place] * demand.memory_share[index] >= least:
                    break
                least = min(least, compute + cells.memory_price[slot, node] * demand.memory_share[index])
            costs[slot, index] = least + operational[slot, index]
    return costs


@kernel
def count_room(cells: Cells, demand: Demand) -> tuple[int, int, int, int]:
    """Cells a task might use: with room, node down, without compute, without memory; each counted once."""
    with_room = node_down = without_compute = without_memory = 0
    for index in range(cells.class_bounds.size - 1):
        if demand.samples[index] == 0:
            continue
        for slot in range(cells.free_samples.shape[0]):
            for node in range(cells.class_bounds[index], cells.class_bounds[index + 1]):
                if not cells.node_up[node]:
                    node_down += 1
                elif cells.free_samples[slot, node] < demand.samples[index]:
                    without_compute += 1
                elif cells.free_gib[slot, node] < demand.memory_gib:
                    without_memory += 1
                else:
                    with_room += 1
    return with_room, node_down, without_compute, without_memory


@kernel
def slots_until_done(cells: Cells, demand: Demand) -> int:
    """The least number of slots, from the first on, in whose room the work is done; -1 if there is none."""
    done = 0
    for slot in range(cells.free_samples.shape[0]):
        possible = 0
        for index in range(cells.class_bounds.size - 1):
            if demand.samples[index] <= possible:
                continue
            for node in range(cells.class_bounds[index], cells.class_bounds[index + 1]):
                if (
                    cells.node_up[node]
                    and cells.free_samples[slot, node] >= demand.samples[index]
                    and cells.free_gib[slot, node] >= demand.memory_gib
                ):
                    possible = demand.samples[index]
                    break
        done += possible
        if done >= demand.work_samples:
            return slot + 1
    return -1
