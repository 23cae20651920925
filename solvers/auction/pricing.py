"""The cheapest plan of a task at additive prices (constraint 6a), room or no room."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.arrays import Floats, Ints
from solvers.auction.counts import EQUAL, NO_CHOICE
from solvers.auction.cover import by_cost, cheapest_cover
from solvers.auction.instance import Instance, OfferedTask
from solvers.auction.window import Window
from solvers.compiled import kernel

OFFLINE_BUDGET_STEPS = 200_000_000
"""Of one search for a plan where nobody waits for a decision: a second or so at most."""


class Plan(NamedTuple):
    """What a search for the cheapest plan came to."""

    bound: float
    """No plan costs less, or none less than the cutoff if that is lower; infinite where there is no plan."""
    cost: float
    """Of the plan found, infinite without one. It is the cheapest where it equals the bound."""
    option: int
    """-1 without a plan."""
    chosen: Ints
    """(slots,) classes or `NO_CHOICE`."""
    steps: int
    """What the search took."""


@kernel
def cheapest_plan(
    costs: Floats,
    samples: Ints,
    work_samples: int,
    delays_slots: Ints,
    prices_micros: Floats,
    cutoff: float,
    budget_steps: int,
) -> Plan:
    """The least q + sum of costs over all vendors and covers, as far as the budget of steps leads.

    Args:
        costs: (slots, classes), infinite where a class cannot be chosen. Overwritten.
        delays_slots, prices_micros: (options,) undominated, by delay.
        cutoff: the search ends once it has proven that no plan costs less.
    """
    order = by_cost(costs)
    best, best_option = np.inf, -1
    chosen = best_chosen = np.full(costs.shape[0], NO_CHOICE, np.int64)
    # Of covers after the last delay looked at: no later start makes them cheaper.
    cover_bound, cover_cost = 0.0, np.inf
    open_bound = np.inf
    steps = 0
    for option in range(delays_slots.size):
        price = prices_micros[option]
        limit = min(best, cutoff) - price
        # A cover found with less delay may start late enough for more.
        found_in_time = cover_cost < np.inf and not (chosen[: delays_slots[option]] != NO_CHOICE).any()
        if found_in_time and cover_cost < limit:
            best, best_option, best_chosen = price + cover_cost, option, chosen
            limit = min(limit, cover_cost)
        if cover_bound >= limit * (1.0 - EQUAL):
            continue
        if steps >= budget_steps and best_option >= 0:
            # The last vendor is the cheapest.
            open_bound = min(open_bound, prices_micros[-1] + cover_bound)
            break
        costs[: delays_slots[option]] = np.inf
        cover = cheapest_cover(costs, order, samples, work_samples, limit, max(budget_steps - steps, 0))
        steps += cover.steps
        cover_bound = max(cover_bound, cover.bound)
        if cover_bound == np.inf:
            break
        if cover.cost < np.inf:
            cover_cost, chosen = cover.cost, cover.chosen
            if price + cover_cost < best:
                best, best_option, best_chosen = price + cover_cost, option, chosen
        if cover_bound < (min(best, cutoff) - price) * (1.0 - EQUAL):
            open_bound = min(open_bound, price + cover_bound)
    return Plan(min(best, open_bound), best, best_option, best_chosen, steps)


@dataclass(frozen=True)
class PricedPlan:
    """A task's cheapest plan at some prices."""

    cost: float
    """q + e + resource prices, in micros."""
    bound: float
    """No plan costs less; as much as `cost` unless the search for it took too many steps."""
    option: int
    """Index among the window's options."""
    columns: Ints
    """Columns of the instance's slots, ascending."""
    classes: Ints
    """The class in each of them."""


def window_of(instance: Instance, task: OfferedTask) -> Window | None:
    """The task's part of an instance; None where even empty nodes could not do its work in time."""
    return Window.within(
        instance.first_slot,
        task.demand.operational(instance.full_costs),
        task.demand,
        task.options,
        task.first_slot,
        task.last_slot,
    )


def price(task: OfferedTask, window: Window, costs: Floats) -> PricedPlan | None:
    """The cheapest plan at `costs` (slots of the window, classes), which are overwritten; None without one.

    `costs` holds e and whatever is asked for the resources of each slot, infinite where there is no room.
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
    """The sum of max(0, b_i - the least q + e of any plan): the dual objective (Eq. 6) at prices of zero."""
    total = 0
    for task in instance.tasks:
        window = window_of(instance, task)
        plan = None if window is None else price(task, window, window.operational.copy())
        if plan is not None:
            total += max(math.ceil(task.bid_micros - plan.bound), 0)
    return total


@kernel
def cell_costs(
    operational: Floats, first_group: Ints, kinds: Ints, weights: Floats, prices: Floats
) -> tuple[Floats, Ints]:
    """Per slot and class, the least e + what the views of a group's nodes ask for, and the group.

    Args:
        operational: (slots, classes)
        first_group: (slots * classes + 1,) where the groups of each slot and class begin.
        kinds: (groups,)
        weights: (kinds, views) of the task, infinite where it does not fit.
        prices: (groups, views), never negative.

    Returns:
        (slots, classes) costs, infinite where it fits nowhere, and groups.
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
