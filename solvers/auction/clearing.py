"""Market-clearing prices of bids that are all known: the dual D_1 (Eq. 6), made as small as it gets.

Prices of what is asked for too much rise, the others fall, round by round. One price per slot and class of
nodes is enough, for the nodes of an empty class are interchangeable. Any such prices make a point of the dual
once mu_i covers constraint 6a (erratum P8), so each round's value is an upper bound on the welfare of every
schedule. The least of them audits a day that is over, and its prices forecast the next one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.arrays import Floats
from solvers.auction.instance import Instance, OfferedTask
from solvers.auction.pricing import price, window_of
from solvers.auction.window import Window

_Buyer = tuple[OfferedTask, Window]

_FIRST_STEP = 1.0
"""By how much of a typical price the first round moves that of what nobody asks for, or twice too many."""
_MOST_EXCESS = 3.0
"""Of demand over what there is: where tasks have few nodes to flock to, prices would leap far too high."""
_KEPT_DIRECTION = 0.7
"""Part of the last round's direction that goes on: tasks flock from one cheap slot to the next."""


@dataclass(frozen=True)
class ClearingPrices:
    """Prices in micros per node-slot, arrays of shape (slots, classes) from the instance's first slot on."""

    compute_price: Floats
    memory_price: Floats
    bound_micros: int
    """The value of the dual at these prices: no schedule has more welfare."""


def clearing_prices(instance: Instance, rounds: int, nodes_part: float = 1.0) -> ClearingPrices:
    """The prices of the least dual value that so many rounds find.

    Args:
        instance: with every node free; what room it names is not looked at.
        nodes_part: the part of its nodes that there is, as for a sample of its tasks.
    """
    nodes = nodes_part * np.array([c.stop - c.start for c in instance.fleet.classes], np.float64)
    buyers = [(task, window) for task in instance.tasks if (window := window_of(instance, task)) is not None]
    typical = _typical_price_micros([task for task, _ in buyers])
    prices = np.zeros((2, instance.slots, nodes.size))
    direction, mean = np.zeros_like(prices), np.zeros_like(prices)
    best = None
    for number in range(1, rounds + 1):
        bound, used = _dual(prices, nodes, buyers)
        best = _better(best, prices, bound)
        direction = _KEPT_DIRECTION * direction + (1 - _KEPT_DIRECTION) * np.minimum(
            used / nodes - 1, _MOST_EXCESS
        )
        prices = np.maximum(prices + _FIRST_STEP * typical / math.sqrt(number) * direction, 0.0)
        # The value is convex, so the mean of points around the least one is better than most; the first ones
        # are far away, and soon forgotten.
        part = 3 / (number + 2)
        mean = (1 - part) * mean + part * prices
    return _better(best, mean, _dual(mean, nodes, buyers)[0])


def _better(best: ClearingPrices | None, prices: Floats, bound_micros: int) -> ClearingPrices:
    if best is not None and best.bound_micros <= bound_micros:
        return best
    return ClearingPrices(prices[0].copy(), prices[1].copy(), bound_micros)


def _typical_price_micros(tasks: Sequence[OfferedTask]) -> float:
    """The middle of what the bids offer per node-slot, on whichever class takes least of it."""
    offers = [task.bid_micros / task.demand.least_node_slots() for task in tasks]
    return float(np.median(offers)) if offers else 0.0


def _dual(prices: Floats, nodes: Floats, buyers: Sequence[_Buyer]) -> tuple[int, Floats]:
    """The dual's value, and the node-slots that the tasks buy: compute and memory, per slot and class."""
    used = np.zeros_like(prices)
    surplus = []
    for task, window in buyers:
        demand = task.demand
        compute, memory = prices[:, window.columns]
        costs = window.operational + compute * demand.compute_share + memory * demand.memory_share
        plan = price(task, window, costs)
        if plan is not None and plan.cost < task.bid_micros:
            surplus.append(task.bid_micros - plan.cost)
            used[0, plan.columns, plan.classes] += demand.compute_share[plan.classes]
            used[1, plan.columns, plan.classes] += demand.memory_share[plan.classes]
    return math.ceil(math.fsum(surplus) + math.fsum((prices * nodes).ravel().tolist())), used
