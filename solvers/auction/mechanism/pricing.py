"""Cheapest plan at additive prices (constraint 6a): one vendor, and a cover of the work."""

from typing import NamedTuple

import numpy as np

from solvers.auction.mechanism.counts import EQUAL, NO_CHOICE
from solvers.auction.mechanism.cover import by_cost, cheapest_cover
from solvers.compiled import Floats, Ints, kernel


class AdditivePlan(NamedTuple):
    """Result of a search for the cheapest plan."""

    bound: float
    """Lower bound on the cost of all plans, or the cutoff if that is lower; infinite without a plan."""
    cost: float
    """Cost of the plan found; infinite without one. The plan is the cheapest if this equals the bound."""
    option: int
    """Index of the vendor's option; -1 without a plan."""
    chosen: Ints
    """Class or `NO_CHOICE` in each slot, (slots,)."""
    steps: int
    """Steps of the search."""


@kernel
def cheapest_plan(
    costs: Floats,
    samples: Ints,
    work_samples: int,
    delays_slots: Ints,
    prices_micros: Floats,
    cutoff: float,
    budget_steps: int,
) -> AdditivePlan:
    """Return the least q + sum of costs over all vendors and covers, within the budget of steps.

    Args:
        costs: (slots, classes), infinite where a class cannot be chosen. Overwritten.
        delays_slots, prices_micros: (options,) undominated, by delay.
        cutoff: the search ends once it has proven that no plan costs less.
    """
    order = by_cost(costs)
    best, best_option = np.inf, -1
    chosen = best_chosen = np.full(costs.shape[0], NO_CHOICE, np.int64)
    # Bound of covers after the last delay examined: no later start makes them cheaper.
    cover_bound, cover_cost = 0.0, np.inf
    open_bound = np.inf
    steps = 0
    for option in range(delays_slots.size):
        price = prices_micros[option]
        limit = min(best, cutoff) - price
        # A cover found with less delay may start late enough for a longer one.
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
    return AdditivePlan(min(best, open_bound), best, best_option, best_chosen, steps)
