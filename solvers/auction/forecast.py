"""Forecast of a day's prices: the prices at which the demand of the day before would just have fitted.

One price per slot and class of nodes is enough, since the nodes of an empty class are interchangeable.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from schemas.auction.settings import OpeningPrices
from schemas.base import HOURS_PER_DAY
from solvers.auction.market.fleet import Calendar, Fleet
from solvers.auction.market.window import Window
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.auction.offline.solution import window_of
from solvers.compiled import Floats, Ints

_FIRST_STEP = 1.0
"""First step, as a part of a typical price, for node-slots with no demand or with twice their capacity."""
_MOST_EXCESS = 3.0
"""Largest counted excess of demand over capacity: otherwise few nodes would get far too high prices."""
_KEPT_DIRECTION = 0.7
"""Momentum: part of the last round's direction that is kept, since all tasks move between cheap slots."""

ROUNDS = 40
"""Rounds of the price search. More do not help on other days, since the model of choices is rough."""

OPENING_PART = 0.8
"""Opening price as a part of the forecast price. A node-slot gets dearer as it fills, and a day with less
demand than the day before must not be priced out."""


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
        """Raise each price by the excess of demand at the present prices over capacity, or lower it by the
        shortfall."""
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


def forecast_opening_prices(instance: Instance, calendar: Calendar) -> tuple[OpeningPrices, ...]:
    """Return opening prices for a day like that of `instance`, whose nodes count as free."""
    fleet = instance.fleet
    nodes = np.array([c.stop - c.start for c in fleet.classes], np.float64)
    demand = EvenDemand(instance)
    tatonnement = Tatonnement((2, instance.slots, nodes.size), demand.tasks)
    for _ in range(ROUNDS):
        tatonnement.adjust(demand.asked(tatonnement.prices) / nodes)
    compute_price, memory_price = tatonnement.mean
    return tuple(
        OpeningPrices(
            gpu_type=gpu_type,
            compute_micros=_by_hour(compute_price, fleet, gpu_type, instance.first_slot, calendar),
            memory_micros=_by_hour(memory_price, fleet, gpu_type, instance.first_slot, calendar),
        )
        for gpu_type in sorted({node_class.gpu_type for node_class in fleet.classes})
    )


def _by_hour(
    prices: Floats, fleet: Fleet, gpu_type: str, first_slot: int, calendar: Calendar
) -> tuple[float, ...]:
    """Return the mean price of a type per hour of the day; for hours without slots, the mean of all."""
    columns = [index for index, c in enumerate(fleet.classes) if c.gpu_type == gpu_type]
    by_hour: list[list[float]] = [[] for _ in range(HOURS_PER_DAY)]
    hours = calendar.hours_of(np.arange(first_slot, first_slot + len(prices)))
    for hour, row in zip(hours.tolist(), prices[:, columns].tolist(), strict=True):
        by_hour[hour] += row
    everything = [price for hour in by_hour for price in hour]
    return tuple(OPENING_PART * _mean(hour or everything) for hour in by_hour)


def _mean(prices: list[float]) -> float:
    return math.fsum(prices) / len(prices)


_Choice = tuple[int, int, int, int, float, float, float]
"""Start and stop column, class, slots of work, compute share, memory share, vendor's price in micros."""


class EvenDemand:
    """Tasks that can be done in time, each with its classes and undominated vendors.

    A task demands even parts of all slots that its vendor leaves it. In hindsight, every task runs where
    others leave room. Online, later tasks are unknown: node-slots get dearer as they fill, so each task runs
    where the least is taken, and tasks level the load over their windows.
    """

    def __init__(self, instance: Instance) -> None:
        self.tasks: list[OfferedTask] = []
        choices: list[_Choice] = []
        starts = []
        for task in instance.tasks:
            window = window_of(instance, task)
            if window is not None and (mine := list(_choices(task, window))):
                starts.append(len(choices))
                choices += mine
                self.tasks.append(task)
        columns = np.array(choices, np.float64).reshape(-1, 7).T
        self._start, self._stop, self._class, self._slots = columns[:4].astype(np.int64)
        self._shares, self._vendor_micros = columns[4:6], columns[6]
        self._first_of_task = np.array(starts, np.int64)
        self._bids_micros = np.array([task.bid_micros for task in self.tasks], np.float64)
        self._full_costs = instance.full_costs

    def asked(self, prices: Floats) -> Floats:
        """Return the node-slots of compute and of memory that the tasks demand, each by its cheapest choice.

        Args:
            prices: (2, slots, classes) in micros per node-slot of compute and of memory.

        Returns:
            Node-slots, in the shape of `prices`.
        """
        asked = np.zeros((2, prices.shape[1] + 1, prices.shape[2]))
        chosen = self._chosen(prices)
        start, stop, index = self._start[chosen], self._stop[chosen], self._class[chosen]
        for resource in (0, 1):
            per_slot = self._slots[chosen] * self._shares[resource, chosen] / (stop - start)
            np.add.at(asked[resource], (start, index), per_slot)
            np.add.at(asked[resource], (stop, index), -per_slot)
        # Starts and ends cancel except for rounding.
        return np.asarray(np.maximum(np.cumsum(asked, axis=1)[:, :-1], 0.0))

    def _chosen(self, prices: Floats) -> Ints:
        """Return the choice of each task that buys."""
        if not self.tasks:
            return np.zeros(0, np.int64)
        compute, memory = (self._sums(each) for each in (prices[0] + self._full_costs, prices[1]))
        per_slot = (self._shares[0] * compute + self._shares[1] * memory) / (self._stop - self._start)
        costs = self._vendor_micros + self._slots * per_slot
        least = np.minimum.reduceat(costs, self._first_of_task)
        choices = np.diff(np.append(self._first_of_task, costs.size))
        cheapest = np.flatnonzero(costs == np.repeat(least, choices))
        _, first = np.unique(np.searchsorted(self._first_of_task, cheapest, "right"), return_index=True)
        return np.asarray(cheapest[first][least < self._bids_micros])

    def _sums(self, values: Floats) -> Floats:
        """Sum (slots, classes) over each choice's slots, on its class, (choices,)."""
        sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
        return np.asarray(sums[self._stop, self._class] - sums[self._start, self._class])


def _choices(task: OfferedTask, window: Window) -> Iterator[_Choice]:
    demand: Sequence[int] = task.demand.samples.tolist()
    stop = window.columns.stop
    for option in window.options:
        start = window.columns.start + option.delay_slots
        for index, samples in enumerate(demand):
            slots = math.ceil(task.demand.work_samples / samples) if samples else math.inf
            if slots <= stop - start:
                compute, memory = task.demand.compute_share[index], task.demand.memory_share[index]
                yield start, stop, index, int(slots), compute, memory, float(option.price_micros)
