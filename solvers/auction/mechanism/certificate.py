"""How good the decisions are proven to be: the dual bound, and the welfare that it bounds."""

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
"""Of the search behind one bid's part of the bound. The plan and its price come from a search of its own, so
they do not depend on the bid, which this one's cutoff follows."""


def least_additive_cost(
    market: Market,
    demand: Demand,
    window: Window,
    cutoff_micros: float = math.inf,
    budget_steps: int = CERTIFICATE_BUDGET_STEPS,
) -> float:
    """Least q + sum(e + s lambda + r phi) over *all* plans, node-slots without room too.

    Infinite without a plan, or if none is below `cutoff_micros`: what costs as much as is bid adds nothing.
    Where the budget of steps runs out, it is what no plan can cost less than, so that the dual bound stays
    one.

    Constraint 6a prices a plan node-slot by node-slot, and knows no room: so does this, where F (Eq. 10) does
    not (erratum P8). mu_i = max(0, b_i - this) is feasible at these prices, and prices only rise.
    """
    return float(
        _least_additive_cost(
            market.node_slots(window.columns.start, window.columns.stop),
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
    """The value of the dual point: sum of mu_i, plus capacity times price over every node-slot there ever
    was.

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


@dataclass
class Welfare:
    """Running sums in whole micros.

    A plan is worth its bid less its vendor's price and its operational cost, as they were when it was
    admitted. The dual bound covers that, plan by plan, and knows nothing of what happens later; so what
    happens later is added up apart. Each cause holds what it has added to the planned welfare, negative where
    it took something.
    """

    planned_micros: int = 0
    """Of all plans as admitted, but for those of jobs that were withdrawn."""
    finished_early_micros: int = 0
    """Operation that jobs did not need, since their work was done before their plan was over."""
    replanned_micros: int = 0
    """What plans that were made again, or cut short, cost less to run than those before them."""
    refunded_micros: int = 0
    """Jobs that could not be finished by no fault of their own: their bids, less operation not spent."""
    failed_micros: int = 0
    """Likewise, of jobs that ended by the fault of their task, its data or its declaration."""
    withdrawn_micros: int = 0
    """Vendors' prices of jobs that were withdrawn, less what new plans for them had added to their cost."""

    @property
    def realised_micros(self) -> int:
        """As things stand: what is still planned counts as planned."""
        return (
            self.planned_micros
            + self.finished_early_micros
            + self.replanned_micros
            + self.refunded_micros
            + self.failed_micros
            + self.withdrawn_micros
        )

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes: amounts may outgrow 64 bits over the years."""
        return {name: str(micros) for name, micros in asdict(self).items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a state."""
        for name, micros in state.items():
            setattr(self, name, int(micros))
