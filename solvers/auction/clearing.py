"""Market-clearing prices of bids that are all known: the dual D_1 (Eq. 6), made as small as it gets.

Prices of what is asked for too much rise, the others fall, round by round. One price per slot and class of
nodes is enough, for the nodes of an empty class are interchangeable. Any such prices make a point of the dual
once mu_i covers constraint 6a (erratum P8), so each round's value is an upper bound on the welfare of every
schedule. The least of them audits a day that is over, and its prices forecast the next one.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from solvers.arrays import Floats, Ints
from solvers.auction.cover import NO_CHOICE, Sums, cheapest_cover, sums_below
from solvers.auction.demand import Demand
from solvers.auction.instance import Instance, OfferedTask
from solvers.auction.window import undominated
from solvers.compiled import kernel

_FIRST_STEP = 0.5
"""By how much of a typical price the first round moves that of what nobody asks for, or twice too many."""
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
    buyers = [buyer for task in instance.tasks if (buyer := _Buyer.of(task, instance)) is not None]
    typical = _typical_price_micros(buyers)
    prices = np.zeros((2, instance.slots, nodes.size))
    direction, mean = np.zeros_like(prices), np.zeros_like(prices)
    best = None
    for number in range(1, rounds + 1):
        bound, used = _dual(prices, nodes, buyers)
        best = _better(best, prices, bound)
        direction = _KEPT_DIRECTION * direction + (1 - _KEPT_DIRECTION) * (used / nodes - 1)
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


@dataclass(frozen=True)
class _Buyer:
    """A task that buys its cheapest plan at given prices if that costs less than its bid."""

    bid_micros: int
    demand: Demand
    columns: slice
    operational: Floats
    sums: Sums
    delays_slots: Ints
    prices_micros: Floats

    @classmethod
    def of(cls, task: OfferedTask, instance: Instance) -> Self | None:
        """The buyer that a task makes, or None where every vendor delivers too late."""
        columns = slice(task.first_slot - instance.first_slot, task.last_slot - instance.first_slot + 1)
        slots = columns.stop - columns.start
        options = [option for option in undominated(list(task.options)) if option.delay_slots < slots]
        if not options:
            return None
        return cls(
            bid_micros=task.bid_micros,
            demand=task.demand,
            columns=columns,
            operational=np.ceil(instance.full_costs[columns] * task.demand.compute_share),
            sums=sums_below(task.demand.samples, task.demand.work_samples, slots),
            delays_slots=np.array([option.delay_slots for option in options], np.int64),
            prices_micros=np.array([option.price_micros for option in options], np.float64),
        )


def _typical_price_micros(buyers: list[_Buyer]) -> float:
    """The middle of what the bids offer per node-slot, on whichever class takes least of it."""
    offers = []
    for buyer in buyers:
        runs = buyer.demand.samples > 0
        per_sample = (buyer.demand.compute_share[runs] + buyer.demand.memory_share[runs]) / (
            buyer.demand.samples[runs]
        )
        offers.append(buyer.bid_micros / (float(per_sample.min()) * buyer.demand.work_samples))
    return float(np.median(offers)) if offers else 0.0


def _dual(prices: Floats, nodes: Floats, buyers: list[_Buyer]) -> tuple[int, Floats]:
    """The dual's value, and the node-slots that the tasks buy: compute and memory, per slot and class."""
    used = np.zeros_like(prices)
    surplus = []
    for buyer in buyers:
        columns = buyer.columns
        cost = _buy(
            prices[:, columns],
            buyer.demand,
            buyer.operational,
            buyer.sums,
            buyer.delays_slots,
            buyer.prices_micros,
            float(buyer.bid_micros),
            used[:, columns],
        )
        surplus.append(max(buyer.bid_micros - cost, 0.0))
    return math.ceil(math.fsum(surplus) + math.fsum((prices * nodes).ravel().tolist())), used


@kernel
def _buy(
    prices: Floats,
    demand: Demand,
    operational: Floats,
    sums: Sums,
    delays_slots: Ints,
    prices_micros: Floats,
    bid_micros: float,
    used: Floats,
) -> float:
    """The cheapest plan's cost; what it takes is added to `used` if the bid is higher."""
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    for slot in range(slots):
        for index in range(classes):
            if demand.samples[index] > 0:
                costs[slot, index] = (
                    operational[slot, index]
                    + prices[0, slot, index] * demand.compute_share[index]
                    + prices[1, slot, index] * demand.memory_share[index]
                )
    least = np.inf
    best = np.full(slots, NO_CHOICE, np.int64)
    for option in range(delays_slots.size):
        costs[: delays_slots[option]] = np.inf
        within, chosen = cheapest_cover(costs, demand.samples, sums, demand.work_samples)
        if prices_micros[option] + within < least:
            least, best = prices_micros[option] + within, chosen
    if least < bid_micros:
        for slot in range(slots):
            if best[slot] != NO_CHOICE:
                used[0, slot, best[slot]] += demand.compute_share[best[slot]]
                used[1, slot, best[slot]] += demand.memory_share[best[slot]]
    return least
