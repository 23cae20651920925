"""Market-clearing prices of a known set of bids: the dual D_1 (Eq. 6), minimised approximately.

One price per slot and class of nodes is enough, since the nodes of an empty class are interchangeable. Any
such prices make a point of the dual once mu_i covers constraint 6a (erratum P8), so each round's value is an
upper bound on the welfare of every schedule. The least of them audits a past day.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.window import Window
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.auction.offline.pricing import price, window_of
from solvers.compiled import Floats

_FIRST_STEP = 1.0
"""First step, as a part of a typical price, for node-slots with no demand or with twice their capacity."""
_MOST_EXCESS = 3.0
"""Largest counted excess of demand over capacity: otherwise few nodes would get far too high prices."""
_KEPT_DIRECTION = 0.7
"""Momentum: part of the last round's direction that is kept, since all tasks move between cheap slots."""


class Tatonnement:
    """Prices per node-slot in micros, arrays of shape (2, slots, classes): of compute, and of memory."""

    def __init__(self, shape: tuple[int, int, int], tasks: Sequence[OfferedTask]) -> None:
        """Start with prices of zero. Steps are in units of the offers of these tasks."""
        self.prices = np.zeros(shape)
        self.mean = np.zeros(shape)
        """Mean of the rounds' prices, which oscillate around the solution. The first rounds, which are far
        from it, fade soon."""
        self._typical_micros = _typical_price_micros(tasks)
        self._direction = np.zeros(shape)
        self._rounds = 0

    def adjust(self, asked: Floats) -> None:
        """Move every price by the demand at the present prices, as a part of the capacity."""
        self._rounds += 1
        excess = np.minimum(asked - 1, _MOST_EXCESS)
        self._direction = _KEPT_DIRECTION * self._direction + (1 - _KEPT_DIRECTION) * excess
        step_micros = _FIRST_STEP * self._typical_micros / math.sqrt(self._rounds)
        self.prices = np.maximum(self.prices + step_micros * self._direction, 0.0)
        part = 3 / (self._rounds + 2)
        self.mean = (1 - part) * self.mean + part * self.prices


def _typical_price_micros(tasks: Sequence[OfferedTask]) -> float:
    """Return the median offer of the bids per node-slot, on the class that needs the fewest."""
    offers = [task.bid_micros / task.demand.least_node_slots() for task in tasks]
    return float(np.median(offers)) if offers else 0.0


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
