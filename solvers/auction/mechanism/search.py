"""Search for the best schedule of one task: vendor, slots and nodes (Algorithm 2, with errata P1 to P3).

It is a branch and bound over vendors and pairs of price ceilings (Eq. 12, erratum P3).

A schedule pays the *highest* price among its node-slots for all of its resources, so its cost is not
additive. But under fixed ceilings (lambda-hat, phi-hat) it is: each node-slot under both ceilings costs the
ceiling prices and its operational cost. The search keeps boxes: ranges of vendors, of compute ceilings and of
memory ceilings. The lower bound of a box is the cost of its cheapest cover under the best value of each side:
node-slots under its highest ceilings, prices of its lowest ceilings, the slots that its fastest vendor
leaves, and the price of its cheapest vendor. This cover is also a schedule. The box with the least bound is
split along the side that makes its true cost exceed the bound. The search ends when no box can contain a
cheaper schedule than the best one found, or when the budget of steps is spent.
"""

import heapq
import math
from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement, placement_of
from solvers.auction.market.node_slots import Fronts, NodeSlots, price_fronts, uses
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.counts import EQUAL, NO_CHOICE, Cover, cover_by_counts
from solvers.auction.mechanism.cover import by_cost, cheapest_cover
from solvers.compiled import Floats, Ints, kernel

_FIRST_COVER_STEPS = 2**14
"""Steps of the first search for a cover that counts have not found; the next one of the same box has eight
times as many."""
_LAST_EFFORT = 4
_VENDOR, _COMPUTE, _MEMORY, _COVER = 0, 1, 2, 3
"""Sides of a box that may be divided; the last is the effort of the search for its cover."""

SEARCH_BUDGET_STEPS = 4_000_000
"""Budget of one search for a schedule: a rule of the auction, since decisions follow from it. Steps are slots
times classes of every box, combinations of counts, and labels of covers."""


class ScheduleProblem(NamedTuple):
    """Problem of the schedule search of one task."""

    demand: Demand
    fronts: Fronts
    operational: Floats
    """Cost e_ikt of one slot of the task, (slots, classes)."""
    order: Ints
    """Slots of each class by operational cost, ascending, (classes, slots)."""
    delays_slots: Ints
    """Delays of the vendors, ascending, (options,)."""
    prices_micros: Floats
    """Prices of the vendors, descending, (options,)."""
    compute_levels: Floats
    """Compute prices of the fronts, ascending."""
    memory_levels: Floats


class Box(NamedTuple):
    """Ranges, both ends included, of vendors and of the levels of both ceilings."""

    fast: int
    cheap: int
    low: int
    high: int
    left: int
    right: int


class BoundedBox(NamedTuple):
    """Box with its bound, its best schedule, and its next division."""

    bound: float
    """Lower bound on the cost of the schedules of the box."""
    cost: float
    """Cost of the schedule found in it; infinite without one."""
    option: int
    rows: Ints
    """(slots,) node rows or `NO_CHOICE`."""
    side: int
    """Side to divide next."""
    middle: int
    """Last index of the first half."""
    steps: int


class FoundSchedule(NamedTuple):
    """Result of a search."""

    cost: float
    """Cost of the schedule; infinite without one."""
    bound: float
    """Lower bound on the cost of all schedules; equal to `cost` if that is proven optimal."""
    option: int
    rows: Ints
    """(slots,) node rows or `NO_CHOICE`."""
    steps: int
    """Steps of the search."""


@kernel
def schedule_problem(
    node_slots: NodeSlots, demand: Demand, operational: Floats, delays_slots: Ints, prices_micros: Floats
) -> ScheduleProblem:
    """Return the problem of scheduling a task in the room of `node_slots`."""
    fronts = price_fronts(node_slots, demand)
    begin = fronts.start[delays_slots[0] * operational.shape[1]]
    return ScheduleProblem(
        demand,
        fronts,
        operational,
        by_cost(operational),
        delays_slots,
        prices_micros,
        np.unique(fronts.compute[begin:]),
        np.unique(fronts.memory[begin:]),
    )


@kernel
def cheapest_schedule(problem: ScheduleProblem, budget_steps: int) -> FoundSchedule:
    """Return the vendor and the schedule of least total cost: vendor's price, operation and resources.

    If the budget runs out, it is the best one found, with a lower bound on all others. There always is a
    schedule if there is room.
    """
    best_cost, best_option = np.inf, -1
    best_rows = np.full(problem.operational.shape[0], NO_CHOICE, np.int64)
    if problem.compute_levels.size == 0:
        return FoundSchedule(best_cost, best_cost, best_option, best_rows, 0)
    whole = Box(
        0,
        problem.delays_slots.size - 1,
        0,
        problem.compute_levels.size - 1,
        0,
        problem.memory_levels.size - 1,
    )
    spent_steps = 0
    given_up = np.inf
    # Entries: bound, side, middle, effort, and the box. The first box is bounded as the child of itself.
    open_boxes = [(0.0, _COVER, 0, -1, whole)]
    while len(open_boxes) > 0:
        bound, side, middle, effort, box = heapq.heappop(open_boxes)
        if bound >= best_cost * (1.0 - EQUAL):
            break
        if spent_steps >= budget_steps and best_option >= 0:
            given_up = min(given_up, bound)
            break
        if side == _COVER and effort == _LAST_EFFORT:
            given_up = min(given_up, bound)
            continue
        for half in range(1 if side == _COVER else 2):
            child = _part(box, side, middle, half)
            child_effort = effort + 1 if side == _COVER else 0
            searched = _bound_box(problem, child, child_effort, budget_steps - spent_steps)
            spent_steps += searched.steps
            if searched.cost < best_cost:
                best_cost, best_option, best_rows = searched.cost, searched.option, searched.rows
            child_bound = max(bound, searched.bound)
            if child_bound < min(searched.cost, best_cost) * (1.0 - EQUAL):
                heapq.heappush(open_boxes, (child_bound, searched.side, searched.middle, child_effort, child))
    return FoundSchedule(best_cost, min(best_cost, given_up), best_option, best_rows, spent_steps)


@kernel
def _part(box: Box, side: int, middle: int, half: int) -> Box:
    """Return a half of a box, divided after `middle`."""
    fast, cheap, low, high, left, right = box
    if side == _VENDOR:
        if half == 0:
            cheap = middle
        else:
            fast = middle + 1
    elif side == _COMPUTE:
        if half == 0:
            high = middle
        else:
            low = middle + 1
    elif side == _MEMORY:
        if half == 0:
            right = middle
        else:
            left = middle + 1
    return Box(fast, cheap, low, high, left, right)


@kernel
def _bound_box(problem: ScheduleProblem, box: Box, effort: int, left_steps: int) -> BoundedBox:
    """Bound a box from below, and find a schedule in it, in about the steps left."""
    demand, operational = problem.demand, problem.operational
    slots, classes = operational.shape
    floors = (problem.compute_levels[box.low], problem.memory_levels[box.left])
    ceilings = (problem.compute_levels[box.high], problem.memory_levels[box.right])
    costs = _costs_under(problem, problem.delays_slots[box.fast], floors, ceilings)
    cover = _cover(problem, costs, effort, left_steps)
    bound = problem.prices_micros[box.cheap] + cover.bound
    rows = np.full(slots, NO_CHOICE, np.int64)
    steps = cover.steps + 2 * slots * classes
    if cover.cost == np.inf:
        return BoundedBox(bound, np.inf, -1, rows, _COVER, 0, steps)
    highest_compute, highest_memory = 0.0, 0.0
    compute_used, memory_used, operation = 0.0, 0.0, 0.0
    first = slots
    for slot in range(slots - 1, -1, -1):
        index = cover.chosen[slot]
        if index == NO_CHOICE:
            continue
        group = slot * classes + index
        node_slot = _first_under(
            problem.fronts.memory, problem.fronts.start[group], problem.fronts.start[group + 1], ceilings[1]
        )
        rows[slot] = problem.fronts.nodes[node_slot]
        highest_compute = max(highest_compute, problem.fronts.compute[node_slot])
        highest_memory = max(highest_memory, problem.fronts.memory[node_slot])
        compute_used += demand.compute_share[index]
        memory_used += demand.memory_share[index]
        operation += operational[slot, index]
        first = slot
    option = int(np.searchsorted(problem.delays_slots, first, side="right")) - 1
    cost = (
        problem.prices_micros[option]
        + operation
        + highest_compute * compute_used
        + highest_memory * memory_used
    )
    side, middle, widest = _COVER, 0, cover.cost - cover.bound
    if option < box.cheap:
        gap = problem.prices_micros[option] - problem.prices_micros[box.cheap]
        if gap > widest:
            side, middle, widest = _VENDOR, (option + box.cheap) // 2, gap
    gap = (highest_compute - floors[0]) * compute_used
    if gap > widest:
        side, middle, widest = _COMPUTE, _halved(problem.compute_levels, floors[0], highest_compute), gap
    gap = (highest_memory - floors[1]) * memory_used
    if gap > widest:
        side, middle = _MEMORY, _halved(problem.memory_levels, floors[1], highest_memory)
    return BoundedBox(bound, cost, option, rows, side, middle, steps)


@kernel
def _halved(levels: Floats, floor: float, highest: float) -> int:
    """Return the last level in the lower half of the range between two levels, without the higher one."""
    half = np.searchsorted(levels, 0.5 * (floor + highest), side="right")
    return int(min(half, np.searchsorted(levels, highest))) - 1


@kernel
def _costs_under(
    problem: ScheduleProblem, first_slot: int, floors: tuple[float, float], ceilings: tuple[float, float]
) -> Floats:
    """Return the cost at the floors of the node-slots under both ceilings, (slots, classes); infinite without
    a node-slot."""
    samples, operational = problem.demand.samples, problem.operational
    start, compute, memory = problem.fronts.start, problem.fronts.compute, problem.fronts.memory
    slots, classes = operational.shape
    resources = floors[0] * problem.demand.compute_share + floors[1] * problem.demand.memory_share
    costs = np.full((slots, classes), np.inf)
    for slot in range(first_slot, slots):
        for index in range(classes):
            group = slot * classes + index
            if start[group] < start[group + 1] and samples[index] > 0:
                node_slot = _first_under(memory, start[group], start[group + 1], ceilings[1])
                if node_slot < start[group + 1] and compute[node_slot] <= ceilings[0]:
                    costs[slot, index] = resources[index] + operational[slot, index]
    return costs


@kernel
def _cover(problem: ScheduleProblem, costs: Floats, effort: int, left_steps: int) -> Cover:
    """Return the cheapest cover at these costs; more effort gives a tighter bound."""
    demand = problem.demand
    if effort == 0:
        found = cover_by_counts(costs, problem.order, demand.samples, demand.work_samples, 2 * costs.size)
        if found.cost < np.inf or found.bound == np.inf:
            return found
    limit = min(_FIRST_COVER_STEPS << (3 * max(effort - 1, 0)), max(left_steps, 0))
    return cheapest_cover(costs, problem.order, demand.samples, demand.work_samples, np.inf, limit)


@kernel
def _first_under(memory: Floats, low: int, high: int, ceiling: float) -> int:
    """Return the cheapest node-slot of a front in compute whose memory price is under a ceiling."""
    while low < high:
        middle = (low + high) // 2
        if memory[middle] <= ceiling:
            high = middle
        else:
            low = middle + 1
    return low


class Schedule(NamedTuple):
    """Plan and its price, independent of the bid."""

    vendor: str | None
    vendor_micros: int
    vendor_delay_slots: int
    operational_micros: int
    compute_micros: float
    """Cost of compute: for pdFTSP all of it at the highest compute price of its node-slots."""
    memory_micros: float
    """Cost of memory, likewise."""
    compute_used: float
    """Node-slots of compute."""
    memory_used: float
    """Node-slots of memory."""
    samples: int
    placement: Placement
    gap_micros: float | None = None
    """Bound on the saving by another plan: 0 if this one is proven optimal. None without such a search."""
    search_steps: int = 0
    """Steps of the search, of its budget."""


def best_schedule(
    market: Market, demand: Demand, window: Window, room_only: bool, budget_steps: int = SEARCH_BUDGET_STEPS
) -> Schedule | None:
    """Return the schedule that maximises F(il) for any bid, the one of least critical value, or None.

    If the budget of steps runs out first, it is the best one found, and `Schedule.gap_micros` bounds the
    saving by another. The result depends neither on a bid nor on time: the search ends at the same step on
    every machine. With `room_only` it uses only node-slots with room (erratum P2).
    """
    start, stop = window.columns.start, window.columns.stop
    node_slots = market.node_slots(start, stop) if room_only else market.emptied_node_slots(start, stop)
    found = _best_schedule(
        node_slots, demand, window.operational, window.delays_slots, window.prices_micros, budget_steps
    )
    if found.option < 0:
        return None
    placement = placement_of(found.rows, market.first_slot + start)
    schedule = describe(market, demand, window.options[found.option], placement)
    return schedule._replace(gap_micros=found.cost - found.bound, search_steps=found.steps)


@kernel
def _best_schedule(
    node_slots: NodeSlots,
    demand: Demand,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    budget_steps: int,
) -> FoundSchedule:
    problem = schedule_problem(node_slots, demand, operational, delays_slots, prices_micros)
    return cheapest_schedule(problem, budget_steps)


def describe(market: Market, demand: Demand, option: VendorOption, placement: Placement) -> Schedule:
    """Return the schedule of a placement at the market's present prices."""
    used = uses(
        market.locate(placement), demand, market.full_costs, market.compute_price, market.memory_price
    )
    compute_used = math.fsum(used.compute_shares.tolist())
    memory_used = math.fsum(used.memory_shares.tolist())
    return Schedule(
        vendor=option.vendor,
        vendor_micros=option.price_micros,
        vendor_delay_slots=option.delay_slots,
        operational_micros=int(math.fsum(used.operational.tolist())),
        compute_micros=used.compute_price * compute_used,
        memory_micros=used.memory_price * memory_used,
        compute_used=compute_used,
        memory_used=memory_used,
        samples=used.samples,
        placement=placement,
    )
