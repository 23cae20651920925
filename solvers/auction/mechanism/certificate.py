"""Certificate of the decisions: the dual bound, and the welfare that it bounds."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market
from solvers.auction.market.node_slots import NodeSlots, additive_costs
from solvers.auction.market.window import Window
from solvers.auction.mechanism.pricing import cheapest_plan
from solvers.compiled import Floats, Ints, kernel

CERTIFICATE_BUDGET_STEPS = 2_000_000
"""Budget of the search for one bid's part of the bound. The plan and its price come from a separate search,
so they do not depend on the bid, while the cutoff of this one does."""


def least_additive_cost(
    market: Market,
    demand: Demand,
    window: Window,
    cutoff_micros: float = math.inf,
    budget_steps: int = CERTIFICATE_BUDGET_STEPS,
) -> float:
    """Return the least q + sum(e + s lambda + r phi) over *all* plans, on node-slots without room too.

    Infinite without a plan below `cutoff_micros`: a plan at the cost of the bid adds nothing. If the budget
    of steps runs out, it is a lower bound on the cost, so that the dual bound stays valid.

    Constraint 6a prices a plan node-slot by node-slot, regardless of room. This function does the same, while
    F (Eq. 10) does not (erratum P8). mu_i = max(0, b_i - this) is feasible at these prices, and prices only
    rise.
    """
    return float(
        _least_additive_cost(
            market.node_slots(window.columns.start, window.columns.stop),
            demand,
            window.operational,
            window.delays_slots,
            window.prices_micros,
            # A bid is an integer, for which kernels would be compiled again.
            float(cutoff_micros),
            budget_steps,
        )
    )


@kernel
def _least_additive_cost(
    node_slots: NodeSlots,
    demand: Demand,
    operational: Floats,
    delays_slots: Ints,
    prices_micros: Floats,
    cutoff_micros: float,
    budget_steps: int,
) -> float:
    costs = additive_costs(node_slots, demand, operational)
    plan = cheapest_plan(
        costs, demand.samples, demand.work_samples, delays_slots, prices_micros, cutoff_micros, budget_steps
    )
    return plan.bound if plan.bound < cutoff_micros else np.inf


class DualBound:
    """Value of the dual point: sum of mu_i, plus capacity times price over all past and present node-slots.

    Kept in whole micros, each addition rounded up, so that the bound stays valid.
    """

    def __init__(self, micros: int = 0) -> None:
        self.micros = micros

    def count_bid(self, bid_micros: int, additive_cost: float) -> int:
        """Add mu_i of a bid, from `least_additive_cost` at the prices before it, and return it in micros."""
        gain_micros = math.ceil(bid_micros - additive_cost) if additive_cost < bid_micros else 0
        self.micros += gain_micros
        return gain_micros

    def remove(self, gain_micros: int) -> None:
        """Subtract mu_i of a withdrawn bid: without it, the point of the others is still feasible."""
        self.micros -= gain_micros

    def rise(self, rises: Sequence[float], at_least_micros: int) -> None:
        """Add the rises of prices; capacities are 1 in normalised units.

        Args:
            at_least_micros: lower bound on the sum of the rises by weak duality, after an admission: the
                welfare of the plan less mu_i (docs/auction/certificate.md). The sum is below it only by
                rounding of amounts near the largest possible.
        """
        self.micros += max(math.ceil(math.fsum(rises)), at_least_micros)


@dataclass
class WelfareSums:
    """Running sums in whole micros.

    The welfare of a plan is its bid less its vendor's price and its operational cost, at its admission. The
    dual bound covers that, plan by plan, and no later events. So later changes are added up separately: the
    sum of each cause is its change of the planned welfare, negative for a loss.
    """

    planned_micros: int = 0
    """Welfare of all plans as admitted, except those of withdrawn jobs."""
    finished_early_micros: int = 0
    """Saved operation of jobs that ended before their plan."""
    replanned_micros: int = 0
    """Saved operation of new or shortened plans, compared with the former ones."""
    refunded_micros: int = 0
    """Loss by jobs that ended without their own fault: their bids, less operation not spent."""
    failed_micros: int = 0
    """Loss, counted likewise, by jobs that failed because of their task, its data or its declaration."""
    withdrawn_micros: int = 0
    """Vendors' prices of withdrawn jobs, less the additional cost of new plans for them."""
    undelivered_micros: int = 0
    """Vendors' prices that were not paid, as nothing was delivered for them."""

    @property
    def realised_micros(self) -> int:
        """Present welfare: unfinished plans count as planned."""
        return (
            self.planned_micros
            + self.finished_early_micros
            + self.replanned_micros
            + self.refunded_micros
            + self.failed_micros
            + self.withdrawn_micros
            + self.undelivered_micros
        )

    def state(self) -> dict[str, Any]:
        """Return the state in types that msgpack writes: amounts may exceed 64 bits over the years."""
        return {name: str(micros) for name, micros in asdict(self).items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, micros in state.items():
            setattr(self, name, int(micros))
