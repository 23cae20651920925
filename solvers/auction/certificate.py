"""A feasible point of the dual D_1 (Eq. 6), kept as bids come: an upper bound on the offline optimum."""

import math
from collections.abc import Sequence

from solvers.auction.cells import additive_costs
from solvers.auction.cover import NO_CHOICE, cheapest_cover
from solvers.auction.demand import Demand
from solvers.auction.market import Market
from solvers.auction.window import Window


def least_additive_cost(market: Market, demand: Demand, window: Window) -> float:
    """Least q + sum(e + s lambda + r phi) over *all* plans, cells without room too; infinite without one.

    Constraint 6a prices a plan cell by cell, and knows no room: so does this, where F (Eq. 10) does not
    (erratum P8). mu_i = max(0, b_i - this) is feasible at these prices, and prices only rise.
    """
    costs = additive_costs(
        market.compute_price[window.columns],
        market.memory_price[window.columns],
        market.class_bounds,
        demand.samples,
        demand.compute_share,
        demand.memory_share,
        window.operational,
    )
    least, within = math.inf, 0.0
    chosen = None
    for option in window.options:
        if option.price_micros + within >= least:
            continue
        # A cover that is cheapest with less delay stays so with more, as long as it starts late enough.
        if chosen is None or (chosen[: option.delay_slots] != NO_CHOICE).any():
            costs[: option.delay_slots] = math.inf
            within, chosen = cheapest_cover(
                costs, demand.samples, window.sums, window.following, demand.work_samples
            )
        least = min(least, option.price_micros + within)
    return least


class DualBound:
    """The value of the dual point: sum of mu_i, plus capacity times price over every cell there ever was.

    Kept in whole micros, each addition rounded up, so that the bound stays one.
    """

    def __init__(self, micros: int = 0) -> None:
        self.micros = micros

    def judge(self, bid_micros: int, additive_cost: float) -> None:
        """Add mu_i of a bid, from `least_additive_cost` at the prices before it."""
        if additive_cost < bid_micros:
            self.micros += math.ceil(bid_micros - additive_cost)

    def rise(self, rises: Sequence[float]) -> None:
        """Add what the prices rose by; capacities are 1 in normalised units."""
        self.micros += math.ceil(math.fsum(rises))
