"""A forecast of a day's prices from a day before: what would just have found room for what was asked."""

import math

import numpy as np

from schemas.base import HOURS_PER_DAY
from schemas.policies import OpeningPrices
from solvers.arrays import Floats
from solvers.auction.calendar import Calendar
from solvers.auction.even_demand import EvenDemand
from solvers.auction.fleet import Fleet
from solvers.auction.instance import Instance
from solvers.auction.tatonnement import Tatonnement

ROUNDS = 40
"""More would sharpen what is a rough picture of how tasks choose: tried on other days, it brings no more."""

OPENING_PART = 0.8
"""Of those prices. A cell gets dearer as it fills, and a day that asks for less than the day before must not
be priced out."""


def forecast_opening_prices(instance: Instance, calendar: Calendar) -> tuple[OpeningPrices, ...]:
    """Opening prices for a day like that of `instance`, whose nodes are taken to be free."""
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
    """The mean price of a type per hour of the day; of hours that the day has not, the mean of all."""
    columns = [index for index, c in enumerate(fleet.classes) if c.gpu_type == gpu_type]
    by_hour: list[list[float]] = [[] for _ in range(HOURS_PER_DAY)]
    hours = calendar.hours_of(np.arange(first_slot, first_slot + len(prices)))
    for hour, row in zip(hours.tolist(), prices[:, columns].tolist(), strict=True):
        by_hour[hour] += row
    everything = [price for hour in by_hour for price in hour]
    return tuple(OPENING_PART * _mean(hour or everything) for hour in by_hour)


def _mean(prices: list[float]) -> float:
    return math.fsum(prices) / len(prices)
