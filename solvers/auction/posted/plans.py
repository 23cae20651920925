"""The search for plans at posted prices: additive, and alike for all nodes of a class in a slot."""

from typing import NamedTuple

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.node_slots import NodeSlots, fullest_row
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.auction.mechanism.pricing import cheapest_plan
from solvers.compiled import Floats, Ints, kernel


class Found(NamedTuple):
    """The cheapest plan in the room that there is."""

    cost: float
    """Vendor, operation and room; infinite without a plan."""
    bound: float
    """No plan costs less; it is the cost where the search was not cut off by its budget."""
    option: int
    rows: Ints
    """(slots,) node rows or `NO_CHOICE`."""
    compute: float
    """Of the cost, what is for compute."""
    memory: float
    steps: int


@kernel
def cheapest(
    node_slots: NodeSlots,
    demand: Demand,
    compute_price: Floats,
    memory_price: Floats,
    floor: Floats,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    budget_steps: int,
) -> Found:
    """The least vendor's price + operation + sum of max(s lambda + r phi, floor) over the chosen node-slots.

    Of a class's nodes with room it takes the fullest.

    Args:
        compute_price, memory_price: (slots, classes) micros per node-slot.
        floor: (slots, classes) the least that the task's room costs there, in micros.
        operational: (slots, classes) micros.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    fullest = np.full((slots, classes), NO_CHOICE, np.int64)
    for slot in range(slots):
        for index in range(classes):
            if demand.samples[index] == 0:
                continue
            fullest[slot, index] = fullest_row(node_slots, demand, slot, index)
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
    return Found(plan.cost, plan.bound, plan.option, rows, compute, memory, plan.steps)
