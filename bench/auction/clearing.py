"""Market-clearing prices of a known set of bids: the dual D_1 (Eq. 6), minimised approximately.

Any prices make a point of the dual once mu_i covers constraint 6a (erratum P8), so each round's value is an
upper bound on the welfare of every schedule. The least of them audits a past day.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.auction.forecast import Tatonnement
from solvers.auction.market.window import Window
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.auction.offline.solution import price, window_of
from solvers.compiled import Floats

_Buyer = tuple[OfferedTask, Window]


@dataclass(frozen=True)
class ClearingPrices:
    """Prices in micros per node-slot, arrays of shape (slots, classes) from the instance's first slot on."""

    compute_price: Floats
    memory_price: Floats
    bound_micros: int
    """Value of the dual at these prices: no schedule has more welfare."""


def clearing_prices(instance: Instance, rounds: int) -> ClearingPrices:
    """Return the prices of the least dual value that so many rounds find.

    Args:
        instance: its nodes count as free, whatever room it states.
    """
    nodes = np.array([c.stop - c.start for c in instance.fleet.classes], np.float64)
    buyers = [(task, window) for task in instance.tasks if (window := window_of(instance, task)) is not None]
    tatonnement = Tatonnement((2, instance.slots, nodes.size), [task for task, _ in buyers])
    best = None
    for _ in range(rounds):
        bound, used = _dual(tatonnement.prices, nodes, buyers)
        best = _better(best, tatonnement.prices, bound)
        tatonnement.adjust(used / nodes)
    # The value is convex, so the mean of points around the least one is better than most of them.
    return _better(best, tatonnement.mean, _dual(tatonnement.mean, nodes, buyers)[0])


def _better(best: ClearingPrices | None, prices: Floats, bound_micros: int) -> ClearingPrices:
    if best is not None and best.bound_micros <= bound_micros:
        return best
    return ClearingPrices(prices[0].copy(), prices[1].copy(), bound_micros)


def _dual(prices: Floats, nodes: Floats, buyers: Sequence[_Buyer]) -> tuple[int, Floats]:
    """Return the dual's value, and the compute and memory that the tasks buy, per slot and class."""
    used = np.zeros_like(prices)
    surplus = []
    for task, window in buyers:
        demand = task.demand
        compute, memory = prices[:, window.columns]
        costs = window.operational + compute * demand.compute_share + memory * demand.memory_share
        plan = price(task, window, costs)
        if plan is not None and plan.bound < task.bid_micros:
            surplus.append(task.bid_micros - plan.bound)
            used[0, plan.columns, plan.classes] += demand.compute_share[plan.classes]
            used[1, plan.columns, plan.classes] += demand.memory_share[plan.classes]
    return math.ceil(math.fsum(surplus) + math.fsum((prices * nodes).ravel().tolist())), used
