"""Scans of a zone's cells (slot, node): which have room, at what prices, and how cheap each slot is.

All arrays of cells have shape (slots, nodes), the nodes of a class in neighbouring columns.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@njit(cache=True, nogil=True)
def price_fronts(
    compute_price: Floats,
    memory_price: Floats,
    free_samples: Floats,
    free_gib: Floats,
    node_up: Bools,
    class_bounds: Ints,
    samples: Ints,
    memory_gib: float,
) -> tuple[Ints, Floats, Floats, Ints]:
    """Per slot and class, the cells with room that no other such cell undercuts in both prices.

    Cells of a class differ only in their prices, so a schedule needs no others (erratum P2: without room, no
    offer).

    Returns:
        start: (slots * classes + 1,) where each group begins in the three arrays that follow; group
            `slot * classes + class`; compute prices ascending and memory prices descending within a group;
            the nodes. Of equal cells the first node is kept.
    """
    slots = compute_price.shape[0]
    classes = class_bounds.size - 1
    start = np.zeros(slots * classes + 1, np.int64)
    capacity = slots * classes * 4 + compute_price.shape[1]
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
                    compute_here, memory_here = compute_price[slot, node], memory_price[slot, node]
                    if compute_here >= best_compute and memory_here >= best_memory:
                        continue
                    if (
                        not node_up[node]
                        or free_samples[slot, node] < samples[index]
                        or free_gib[slot, node] < memory_gib
                    ):
                        continue
                    if compute_here + memory_here < best_compute + best_memory:
                        best_compute, best_memory = compute_here, memory_here
                    filled = _insert(compute, memory, nodes, begin, filled, compute_here, memory_here, node)
                    if compute[begin] == 0.0 and memory[begin] == 0.0:
                        break
            start[slot * classes + index + 1] = filled
    return start, compute[:filled], memory[:filled], nodes[:filled]


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
def additive_costs(
    compute_price: Floats,
    memory_price: Floats,
    class_bounds: Ints,
    samples: Ints,
    compute_share: Floats,
    memory_share: Floats,
    operational: Floats,
) -> Floats:
    """Per slot and class, the least s lambda + r phi + e over *all* cells, without room too (erratum P8).

    `operational` and the result have shape (slots, classes); infinite where the class cannot run the task.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    for slot in range(slots):
        for index in range(classes):
            if samples[index] == 0:
                continue
            least = np.inf
            for node in range(class_bounds[index], class_bounds[index + 1]):
                price = (
                    compute_price[slot, node] * compute_share[index]
                    + memory_price[slot, node] * memory_share[index]
                )
                least = min(least, price)
            costs[slot, index] = least + operational[slot, index]
    return costs


@njit(cache=True, nogil=True)
def count_room(
    free_samples: Floats,
    free_gib: Floats,
    node_up: Bools,
    class_bounds: Ints,
    samples: Ints,
    memory_gib: float,
) -> Ints:
    """Cells a task might use: with room, node down, without compute, without memory; each counted once."""
    counts = np.zeros(4, np.int64)
    for index in range(class_bounds.size - 1):
        if samples[index] == 0:
            continue
        for slot in range(free_samples.shape[0]):
            for node in range(class_bounds[index], class_bounds[index + 1]):
                if not node_up[node]:
                    counts[1] += 1
                elif free_samples[slot, node] < samples[index]:
                    counts[2] += 1
                elif free_gib[slot, node] < memory_gib:
                    counts[3] += 1
                else:
                    counts[0] += 1
    return counts


@njit(cache=True, nogil=True)
def samples_possible(
    free_samples: Floats,
    free_gib: Floats,
    node_up: Bools,
    class_bounds: Ints,
    samples: Ints,
    memory_gib: float,
) -> Ints:
    """(slots,) the most samples that the task could train in each slot on one node with room."""
    slots = free_samples.shape[0]
    possible = np.zeros(slots, np.int64)
    for slot in range(slots):
        for index in range(class_bounds.size - 1):
            if samples[index] <= possible[slot]:
                continue
            for node in range(class_bounds[index], class_bounds[index + 1]):
                if (
                    node_up[node]
                    and free_samples[slot, node] >= samples[index]
                    and free_gib[slot, node] >= memory_gib
                ):
                    possible[slot] = samples[index]
                    break
    return possible
