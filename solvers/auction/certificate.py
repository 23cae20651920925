"""A feasible point of the dual D_1 (Eq. 6), kept as bids come: an upper bound on the offline optimum."""

import math
from collections.abc import Sequence

import numpy as np

from solvers.arrays import Floats, Ints
from solvers.auction.cells import Cells, additive_costs
from solvers.auction.demand import Demand
from solvers.auction.market import Market
from solvers.auction.pricing import cheapest_plan
from solvers.auction.window import Window
from solvers.compiled import kernel

CERTIFICATE_BUDGET_STEPS = 2_000_000
"""Of the search behind one bid's part of the bound. The plan and its price come from a search of its own, so
they do not depend on the bid, which this one's cutoff follows."""


def least_additive_cost(
    market: Market,
    demand: Demand,
    window: Window,
    cutoff_micros: float = math.inf,
    budget_steps: int = CERTIFICATE_BUDGET_STEPS,
) -> float:
    """Least q + sum(e + s lambda + r phi) over *all* plans, cells without room too.

    Infinite without a plan, or if none is below `cutoff_micros`: what costs as much as is bid adds nothing.
    Where the budget of steps runs out, it is what no plan can cost less than, so that the dual bound stays
    one.

    Constraint 6a prices a plan cell by cell, and knows no room: so does this, where F (Eq. 10) does not
    (erratum P8). mu_i = max(0, b_i - this) is feasible at these prices, and prices only rise.
    """
    return float(
        _least_additive_cost(
            market.cells(window.columns.start, window.columns.stop),
            demand,
            window.operational,
            window.delays_slots,
            window.prices_micros,
            # A bid is whole micros, which kernels would be compiled for once more.
            float(cutoff_micros),
            budget_steps,
        )
    )


@kernel
def _least_additive_cost(
    cells: Cells,
    demand: Demand,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    cutoff_micros: float,
    budget_steps: int,
) -> float:
    costs = additive_costs(cells, demand, operational)
    plan = cheapest_plan(
        costs, demand.samples, demand.work_samples, delays_slots, prices_micros, cutoff_micros, budget_steps
    )
    return plan.bound if plan.bound < cutoff_micros else np.inf


class DualBound:
    """The value of the dual point: sum of mu_i, plus capacity times price over every cell there ever was.

    Kept in whole micros, each addition rounded up, so that the bound stays one.
    """

    def __init__(self, micros: int = 0) -> None:
        self.micros = micros

    def judge(self, bid_micros: int, additive_cost: float) -> int:
        """Add mu_i of a bid, from `least_additive_cost` at the prices before it, and return it in micros."""
        gain_micros = math.ceil(bid_micros - additive_cost) if additive_cost < bid_micros else 0
        self.micros += gain_micros
        return gain_micros

    def take_back(self, gain_micros: int) -> None:
        """Take back mu_i of a bid that is withdrawn: without it, the others' point is feasible as it is."""
        self.micros -= gain_micros

    def rise(self, rises: Sequence[float], at_least_micros: int) -> None:
        """Add what the prices rose by; capacities are 1 in normalised units.

        Args:
            at_least_micros: what the rises come to at least by weak duality, where a plan was admitted: its
                welfare less mu_i (docs/auction.md). Only the rounding of amounts near the largest that there
                are ever hides that.
        """
        self.micros += max(math.ceil(math.fsum(rises)), at_least_micros)
