"""Search for plans at posted prices, which are additive and equal for all nodes of a class in a slot."""

import math
from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.node_slots import NodeSlots, fullest_rows
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.auction.mechanism.pricing import cheapest_plan
from solvers.auction.posted.constants import FLOOR_PART
from solvers.compiled import Floats, Ints, kernel


class FoundPlan(NamedTuple):
    """Cheapest plan in the present room."""

    cost: float
    """Cost of vendor, operation and room; infinite without a plan."""
    bound: float
    """Lower bound on the cost of all plans; equal to the cost unless the budget ended the search."""
    option: int
    rows: Ints
    """Node row or `NO_CHOICE` in each slot, (slots,)."""
    compute: float
    """Part of the cost for compute."""
    memory: float
    steps: int


@kernel
def cheapest(
    fullest: Ints,
    demand: Demand,
    compute_price: Floats,
    memory_price: Floats,
    floor: Floats,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    budget_steps: int,
) -> FoundPlan:
    """Return the least vendor's price + operation + sum of max(s lambda + r phi, floor) over chosen
    node-slots.

    Args:
        fullest: (slots, classes) row to use of a class in a slot: see `fullest_rows`.
        compute_price, memory_price: (slots, classes) micros per node-slot.
        floor: (slots, classes) least price of the task's room there, in micros.
        operational: (slots, classes) operational cost in micros.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    for slot in range(slots):
        for index in range(classes):
            if fullest[slot, index] != NO_CHOICE:
                room = (
                    compute_price[slot, index] * demand.compute_share[index]
                    + memory_price[slot, index] * demand.memory_share[index]
                )
                costs[slot, index] = max(room, floor[slot, index]) + operational[slot, index]
    plan = cheapest_plan(
        costs, demand.samples, demand.work_samples, delays_slots, prices_micros, np.inf, budget_steps
    )
    rows = np.full(slots, NO_CHOICE, np.int64)
    compute, memory = 0.0, 0.0
    if plan.option >= 0:
        for slot in range(slots):
            index = plan.chosen[slot]
            if index != NO_CHOICE:
                rows[slot] = fullest[slot, index]
                compute += compute_price[slot, index] * demand.compute_share[index]
                memory += memory_price[slot, index] * demand.memory_share[index]
    return FoundPlan(plan.cost, plan.bound, plan.option, rows, compute, memory, plan.steps)


class Weights(NamedTuple):
    """Values of a unit of room to other bids, for the placement of a task whose price is fixed."""

    node_units: Floats
    """Units of a slot of a node, (classes,)."""
    used: Floats
    """Taken part of compute and of memory in the whole market, (2, slots, classes)."""
    first_column: int
    """Column of the market with which the search begins."""
    typical: float
    """Offer of a usual bid for a unit, in micros."""
    premium: float
    """Value of the last unit of a slot beyond that."""
    span_slots: int
    """Horizon of the prices."""
    compute_part: float
    """Part of compute in a unit; the rest is memory."""


class PlacedPlan(NamedTuple):
    """Cheapest plan of a task, and another one that leaves more room to others."""

    priced_plan: FoundPlan
    """Cheapest plan, which sets the price."""
    placed: FoundPlan
    """Placed plan. Its option is -1 if it has no placement; its steps still count."""


@kernel
def placed_plan(
    node_slots: NodeSlots,
    demand: Demand,
    compute_price: Floats,
    memory_price: Floats,
    full_costs: Floats,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    weights: Weights,
    budget_steps: int,
) -> PlacedPlan:
    """Return the cheapest plan at posted prices, and the plan to be placed: it has the same last node-slot,
    and the rest of the work before it at the least weight.

    Args:
        compute_price, memory_price, operational: (slots, classes) as for `cheapest`.
        full_costs: (slots, classes) cost of a fully used node, in micros.
    """
    slots, classes = operational.shape
    floor = np.empty((slots, classes))
    for slot in range(slots):
        for index in range(classes):
            reserved = full_costs[slot, index] * max(demand.compute_share[index], demand.memory_share[index])
            floor[slot, index] = max(FLOOR_PART * reserved, reserved - operational[slot, index])
    fullest = fullest_rows(node_slots, demand)
    priced_plan = cheapest(
        fullest,
        demand,
        compute_price,
        memory_price,
        floor,
        operational,
        delays_slots,
        prices_micros,
        budget_steps,
    )
    none = FoundPlan(np.inf, np.inf, -1, priced_plan.rows, 0.0, 0.0, 0)
    if priced_plan.option < 0:
        return PlacedPlan(priced_plan, none)
    last = slots - 1
    while priced_plan.rows[last] == NO_CHOICE:
        last -= 1
    index = 0
    while node_slots.class_bounds[index + 1] <= priced_plan.rows[last]:
        index += 1
    rest = demand.work_samples - demand.samples[index]
    if rest <= 0 or last == 0:
        return PlacedPlan(priced_plan, none)
    rest_demand = Demand(rest, demand.samples, demand.compute_share, demand.memory_gib, demand.memory_share)
    found = lightest(
        fullest[:last],
        rest_demand,
        operational[:last],
        delays_slots,
        prices_micros,
        weights,
        budget_steps - priced_plan.steps,
    )
    rows = priced_plan.rows.copy()
    rows[:last] = found.rows
    return PlacedPlan(
        priced_plan,
        FoundPlan(found.cost, found.bound, found.option, rows, found.compute, found.memory, found.steps),
    )


@kernel
def lightest(
    fullest: Ints,
    demand: Demand,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    weights: Weights,
    budget_steps: int,
) -> FoundPlan:
    """Return the plan of least weight for others, with vendor and operation.

    Near slots weigh less than far ones, and empty classes less than full ones.

    Args:
        fullest, operational: (slots, classes) of the usable slots, as for `cheapest`.
    """
    slots, classes = operational.shape
    compute, memory = np.empty((slots, classes)), np.empty((slots, classes))
    for slot in range(slots):
        column = weights.first_column + slot
        ahead = math.sqrt(column / weights.span_slots)
        for index in range(classes):
            for resource in range(2):
                used = weights.used[resource, column, index]
                full = (used * used) * (used * used)
                weight = ((ahead + full) * weights.typical + full * weights.premium) * weights.node_units[
                    index
                ]
                if resource == 0:
                    compute[slot, index] = weight * weights.compute_part
                else:
                    memory[slot, index] = weight * (1 - weights.compute_part)
    return cheapest(
        fullest,
        demand,
        compute,
        memory,
        np.zeros((slots, classes)),
        operational,
        delays_slots,
        prices_micros,
        budget_steps,
    )
