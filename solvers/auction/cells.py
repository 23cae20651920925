"""Scans of a zone's cells (slot, node): which have room, at what prices, and how cheap each slot is.

A task may use cells of several classes, each with its own samples per slot.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from solvers.auction.demand import Demand

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


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


@njit(cache=True, nogil=True)
def price_fronts(cells: Cells, demand: Demand) -> Fronts:
    """The fronts of the cells with room for a task (erratum P2: without room, no offer).

    Cells of a class differ only in their prices, so a schedule needs no others. Of equal cells the first node
    is kept.
    """
    class_bounds, samples, memory_gib = cells.class_bounds, demand.samples, demand.memory_gib
    slots, all_nodes = cells.compute_price.shape
    classes = class_bounds.size - 1
    start = np.zeros(slots * classes + 1, np.int64)
    capacity = slots * classes * 4 + all_nodes
    compute = np.empty(capacity)
    memory = np.empty(capacity)
    nodes = np.empty(capacity, np.int64)
    filled = 0
    for slot in range(slots):
        for index in range(classes):
            begin = filled
            if samples[index] > 0:
                if filled + class_bounds[index + 1] - class_bounds[index] > compute.size:
                    compute = np.concatenate((compute, np.empty(compute.size)))
                    memory = np.concatenate((memory, np.empty(memory.size)))
                    nodes = np.concatenate((nodes, np.empty(nodes.size, np.int64)))
                # Most cells are undercut by the one of the least sum of prices: asked first, it saves time.
                best_compute = best_memory = np.inf
                for node in range(class_bounds[index], class_bounds[index + 1]):
                    compute_here = cells.compute_price[slot, node]
                    memory_here = cells.memory_price[slot, node]
                    if compute_here >= best_compute and memory_here >= best_memory:
                        continue
                    if (
                        not cells.node_up[node]
                        or cells.free_samples[slot, node] < samples[index]
                        or cells.free_gib[slot, node] < memory_gib
                    ):
                        continue
                    if compute_here + memory_here < best_compute + best_memory:
                        best_compute, best_memory = compute_here, memory_here
                    filled = _insert(compute, memory, nodes, begin, filled, compute_here, memory_here, node)
                    if compute[begin] == 0.0 and memory[begin] == 0.0:
                        break
            start[slot * classes + index + 1] = filled
    return Fronts(start, compute[:filled], memory[:filled], nodes[:filled])


@njit(cache=True, nogil=True)
def _insert(
    compute: Floats,
    memory: Floats,
    nodes: Ints,
    begin: int,
    end: int,
    compute_price: float,
    memory_price: float,
    node: int,
) -> int:
    """Put a cell into the front at `begin:end` unless it is undercut there; return the front's new end."""
    place = begin
    while place < end and compute[place] <= compute_price:
        if memory[place] <= memory_price:
            return end
        place += 1
    survivors = place
    while survivors < end and memory[survivors] >= memory_price:
        survivors += 1
    kept = end - survivors
    if survivors == place:
        for index in range(end - 1, place - 1, -1):
            compute[index + 1], memory[index + 1], nodes[index + 1] = (
                compute[index], memory[index], nodes[index],
            )  # fmt: skip
    else:
        for index in range(kept):
            compute[place + 1 + index] = compute[survivors + index]
            memory[place + 1 + index] = memory[survivors + index]
            nodes[place + 1 + index] = nodes[survivors + index]
    compute[place], memory[place], nodes[place] = compute_price, memory_price, node
    return place + 1 + kept


@njit(cache=True, nogil=True)
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
            for node in range(cells.class_bounds[index], cells.class_bounds[index + 1]):
                price = (
                    cells.compute_price[slot, node] * demand.compute_share[index]
                    + cells.memory_price[slot, node] * demand.memory_share[index]
                )
                least = min(least, price)
            costs[slot, index] = least + operational[slot, index]
    return costs


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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
