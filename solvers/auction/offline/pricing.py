"""Cheapest plan of a task at additive prices (constraint 6a), regardless of room."""

import math
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.window import Window
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.auction.mechanism.pricing import cheapest_plan
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.compiled import Floats, Ints, kernel

OFFLINE_BUDGET_STEPS = 200_000_000
"""Budget of one offline search for a plan: about a second at most."""


@dataclass(frozen=True)
class PricedPlan:
    """Cheapest plan of a task at some prices."""

    cost: float
    """Cost q + e + resource prices, in micros."""
    bound: float
    """Lower bound on the cost of all plans; equal to `cost` unless the search took too many steps."""
    option: int
    """Index of the option in the window."""
    columns: Ints
    """Columns of the instance's slots, ascending."""
    classes: Ints
    """Class in each column."""


def window_of(instance: Instance, task: OfferedTask) -> Window | None:
    """Return the task's part of an instance; None if even empty nodes could not do its work in time."""
    return Window.within(
        instance.first_slot,
        instance.full_costs,
        task.demand,
        task.options,
        task.first_slot,
        task.last_slot,
    )


def price(task: OfferedTask, window: Window, costs: Floats) -> PricedPlan | None:
    """Return the cheapest plan at `costs` (slots of the window, classes), which are overwritten; or None.

    `costs` holds e plus the price of the resources of each slot, infinite without room.
    """
    costs[:, task.demand.samples == 0] = np.inf
    plan = cheapest_plan(
        costs,
        task.demand.samples,
        task.demand.work_samples,
        window.delays_slots,
        window.prices_micros,
        math.inf,
        OFFLINE_BUDGET_STEPS,
    )
    if plan.option < 0:
        return None
    slots = np.flatnonzero(plan.chosen != NO_CHOICE)
    return PricedPlan(plan.cost, plan.bound, plan.option, slots + window.columns.start, plan.chosen[slots])


def trivial_bound_micros(instance: Instance) -> int:
    """Return the dual objective (Eq. 6) at prices of zero: the sum of max(0, b_i - least q + e of a plan)."""
    total = 0
    for task in instance.tasks:
        window = window_of(instance, task)
        plan = None if window is None else price(task, window, window.operational.copy())
        if plan is not None:
            total += max(math.ceil(task.bid_micros - plan.bound), 0)
    return total


@kernel
def node_slot_costs(
    operational: Floats, first_group: Ints, kinds: Ints, weights: Floats, prices: Floats
) -> tuple[Floats, Ints]:
    """Return the least e + price of the views of a group's nodes, per slot and class, and the group.

    Args:
        operational: (slots, classes) operational costs.
        first_group: (slots * classes + 1,) index of the first group of each slot and class.
        kinds: (groups,) kind of each group.
        weights: (kinds, views) weights of the task, infinite where it does not fit.
        prices: (groups, views) prices, never negative.

    Returns:
        Costs, infinite where it fits nowhere, and groups, (slots, classes) each.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    groups = np.full((slots, classes), -1, np.int64)
    for slot in range(slots):
        for index in range(classes):
            place = slot * classes + index
            for group in range(first_group[place], first_group[place + 1]):
                kind = kinds[group]
                if weights[kind, 0] == np.inf:
                    continue
                cost = operational[slot, index]
                for view in range(weights.shape[1]):
                    cost += prices[group, view] * weights[kind, view]
                if cost < costs[slot, index]:
                    costs[slot, index], groups[slot, index] = cost, group
    return costs, groups
