"""The exact schedule search: the best pair of price ceilings, by branch and bound (Eq. 12, erratum P3).

A schedule pays the *highest* price among its cells for all of its resources, so its cost is not additive. But
under fixed ceilings (lambda-hat, phi-hat) it is: the cells under both ceilings at ceiling prices plus their
operational cost. The search keeps rectangles of ceilings. One rectangle is bounded from below by offering the
cells of its highest ceilings at the prices of its lowest; the rectangle of the least bound is halved, until a
single pair of ceilings is the best there is, which `cheapest_cover` then solves exactly.
"""

import heapq
from typing import NamedTuple

import numpy as np

from solvers.arrays import Floats, Ints
from solvers.auction.cells import Cells, Fronts, price_fronts
from solvers.auction.cover import NO_CHOICE, Sums, cheapest_cover
from solvers.auction.demand import Demand
from solvers.compiled import kernel


class Problem(NamedTuple):
    """The schedule search of one task, whatever its vendor."""

    demand: Demand
    fronts: Fronts
    operational: Floats
    """(slots, classes) e_ikt of one slot of the task."""
    by_cost: Ints
    """(classes, slots) the slots from the cheapest to run to the dearest."""
    counts: Ints
    """(counts, classes) numbers of cells per class that cover the work with none to spare."""
    compute_used: Floats
    """(counts,) node-slots of compute."""
    memory_used: Floats


@kernel
def schedule_problem(cells: Cells, demand: Demand, operational: Floats) -> Problem:
    """The problem of scheduling a task in the room that `cells` have."""
    slots, classes = operational.shape
    counts = _minimal_counts(demand.samples, demand.work_samples, slots)
    compute_used = np.zeros(counts.shape[0])
    memory_used = np.zeros(counts.shape[0])
    for row in range(counts.shape[0]):
        for index in range(classes):
            compute_used[row] += counts[row, index] * demand.compute_share[index]
            memory_used[row] += counts[row, index] * demand.memory_share[index]
    by_cost = np.empty((classes, slots), np.int64)
    for index in range(classes):
        by_cost[index] = np.argsort(operational[:, index], kind="mergesort")
    fronts = price_fronts(cells, demand)
    return Problem(demand, fronts, operational, by_cost, counts, compute_used, memory_used)


@kernel
def _minimal_counts(samples: Ints, work_samples: int, slots: int) -> Ints:
    classes = samples.size
    stack = np.zeros((1, classes), np.int64)
    for index in range(classes - 1):
        grown = [stack[0]]
        grown.pop()
        for row in range(stack.shape[0]):
            covered = (stack[row] * samples).sum()
            most = 0
            if samples[index] > 0 and covered < work_samples:
                most = min(slots, (work_samples - covered + samples[index] - 1) // samples[index])
            for count in range(most + 1):
                line = stack[row].copy()
                line[index] = count
                grown.append(line)
        stack = np.empty((len(grown), classes), np.int64)
        for row in range(len(grown)):
            stack[row] = grown[row]
    last = classes - 1
    kept = 0
    for row in range(stack.shape[0]):
        missing = work_samples - (stack[row] * samples).sum()
        if missing > 0:
            if samples[last] == 0:
                continue
            stack[row, last] = (missing + samples[last] - 1) // samples[last]
        if stack[row].sum() <= slots:
            stack[kept] = stack[row]
            kept += 1
    return stack[:kept]


@kernel
def _offered(fronts: Fronts, group: int, compute_ceiling: float, memory_ceiling: float) -> int:
    """Index of the first cell of a group under both ceilings, or -1."""
    for cell in range(fronts.start[group], fronts.start[group + 1]):
        if fronts.compute[cell] > compute_ceiling:
            return -1
        if fronts.memory[cell] <= memory_ceiling:
            return cell
    return -1


@kernel
def _lower_bound(
    problem: Problem,
    first_slot: int,
    floors: tuple[float, float],
    ceilings: tuple[float, float],
    prefix: Floats,
) -> float:
    """Least cost over the minimal counts, if each class had its own cheapest slots of those offered.

    Exact for one class; for more it minds that all cells need slots of their own, but not which class gets
    a slot that two of them want. `prefix` is scratch of shape (classes, slots + 1).
    """
    operational, counts = problem.operational, problem.counts
    slots, classes = operational.shape
    offered = np.zeros(classes, np.int64)
    usable = np.zeros(slots, np.bool_)
    for index in range(classes):
        prefix[index, 0] = 0.0
        for slot in problem.by_cost[index]:
            if slot < first_slot:
                continue
            if _offered(problem.fronts, slot * classes + index, ceilings[0], ceilings[1]) >= 0:
                prefix[index, offered[index] + 1] = prefix[index, offered[index]] + operational[slot, index]
                offered[index] += 1
                usable[slot] = True
    usable_slots = usable.sum()
    least = np.inf
    for row in range(counts.shape[0]):
        if counts[row].sum() > usable_slots:
            continue
        cost = floors[0] * problem.compute_used[row] + floors[1] * problem.memory_used[row]
        for index in range(classes):
            if counts[row, index] > offered[index]:
                cost = np.inf
                break
            cost += prefix[index, counts[row, index]]
        least = min(least, cost)
    return least


@kernel
def cheapest_schedule(problem: Problem, sums: Sums, first_slot: int, cutoff: float) -> tuple[float, Ints]:
    """The schedule of least operational cost and resource prices from `first_slot` on, if below `cutoff`.

    Returns:
        The cost at the winning ceilings (infinite if none is below `cutoff`), and (slots,) node rows or
        `NO_CHOICE`.
    """
    slots, classes = problem.operational.shape
    schedule = np.full(slots, NO_CHOICE, np.int64)
    begin = problem.fronts.start[first_slot * classes]
    if problem.counts.shape[0] == 0 or begin == problem.fronts.compute.size:
        return np.inf, schedule
    compute_levels = np.unique(problem.fronts.compute[begin:])
    memory_levels = np.unique(problem.fronts.memory[begin:])
    prefix = np.empty((classes, slots + 1))
    best = cutoff
    # Entries: bound, then first and last level of compute and of memory price.
    open_rectangles = [(0.0, 0, compute_levels.size - 1, 0, memory_levels.size - 1)]
    while len(open_rectangles) > 0:
        bound, low, high, left, right = heapq.heappop(open_rectangles)
        if bound >= best:
            break
        if low == high and left == right:
            ceilings = (compute_levels[low], memory_levels[left])
            cost, found = _cheapest_under(problem, sums, first_slot, ceilings, best)
            if cost < best:
                best, schedule = cost, found
            continue
        compute_gap = (compute_levels[high] - compute_levels[low]) * problem.compute_used[0]
        memory_gap = (memory_levels[right] - memory_levels[left]) * problem.memory_used[0]
        for half in range(2):
            child = (low, high, left, right)
            if compute_gap >= memory_gap:
                middle = (low + high) // 2
                child = (low, middle, left, right) if half == 0 else (middle + 1, high, left, right)
            else:
                middle = (left + right) // 2
                child = (low, high, left, middle) if half == 0 else (low, high, middle + 1, right)
            floors = (compute_levels[child[0]], memory_levels[child[2]])
            ceilings = (compute_levels[child[1]], memory_levels[child[3]])
            child_bound = _lower_bound(problem, first_slot, floors, ceilings, prefix)
            if child_bound < best:
                heapq.heappush(open_rectangles, (child_bound, child[0], child[1], child[2], child[3]))
    return (best if best < cutoff else np.inf), schedule


@kernel
def _cheapest_under(
    problem: Problem, sums: Sums, first_slot: int, ceilings: tuple[float, float], cutoff: float
) -> tuple[float, Ints]:
    """The cheapest schedule of the cells under both ceilings, at ceiling prices: cost and node rows.

    Infinite if it is not below `cutoff`.
    """
    compute_ceiling, memory_ceiling = ceilings
    demand, operational = problem.demand, problem.operational
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    for slot in range(first_slot, slots):
        for index in range(classes):
            group = slot * classes + index
            if _offered(problem.fronts, group, compute_ceiling, memory_ceiling) >= 0:
                costs[slot, index] = (
                    compute_ceiling * demand.compute_share[index]
                    + memory_ceiling * demand.memory_share[index]
                    + operational[slot, index]
                )
    cost, chosen = cheapest_cover(costs, demand.samples, sums, demand.work_samples, cutoff)
    rows = np.full(slots, NO_CHOICE, np.int64)
    for slot in range(slots):
        if chosen[slot] != NO_CHOICE:
            group = slot * classes + chosen[slot]
            rows[slot] = problem.fronts.nodes[
                _offered(problem.fronts, group, compute_ceiling, memory_ceiling)
            ]
    return cost, rows
