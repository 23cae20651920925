"""A forecast of a day's prices from a day before: what would have cleared the market then, hour by hour."""

import math
import random
from dataclasses import replace

from schemas.base import HOURS_PER_DAY
from schemas.policies import OpeningPrices
from solvers.arrays import Floats
from solvers.auction.calendar import Calendar
from solvers.auction.clearing import clearing_prices
from solvers.auction.fleet import Fleet
from solvers.auction.instance import Instance

ROUNDS = 20
"""Enough for the value of the dual to come within some percent of its least."""

OPENING_PART = 0.7
"""Of a clearing price. A cell gets dearer as it fills, and is to cost that much about when it is full; and a
day that asks for less than the day before must not be priced out."""


def forecast_opening_prices(
    instance: Instance, calendar: Calendar, part: float = 1.0, seed: int = 0
) -> tuple[OpeningPrices, ...]:
    """Opening prices for a day like that of `instance`.

    Args:
        part: how many of the tasks to look at, on as large a part of the nodes: a tenth of a large day tells
            its prices nearly as well, ten times as fast.
    """
    draws = random.Random(f"{seed}/forecast")
    tasks = [task for task in instance.tasks if part >= 1 or draws.random() < part]
    clearing = clearing_prices(replace(instance, tasks=tasks), ROUNDS, part)
    fleet = instance.fleet
    return tuple(
        OpeningPrices(
            gpu_type=gpu_type,
            compute_micros=_by_hour(clearing.compute_price, fleet, gpu_type, instance.first_slot, calendar),
            memory_micros=_by_hour(clearing.memory_price, fleet, gpu_type, instance.first_slot, calendar),
        )
        for gpu_type in sorted({node_class.gpu_type for node_class in fleet.classes})
    )


def _by_hour(
    prices: Floats, fleet: Fleet, gpu_type: str, first_slot: int, calendar: Calendar
) -> tuple[float, ...]:
    """The mean price of a type per hour of the day; of hours that the day has not, the mean of all."""
    columns = [index for index, c in enumerate(fleet.classes) if c.gpu_type == gpu_type]
    by_hour: list[list[float]] = [[] for _ in range(HOURS_PER_DAY)]
    for ahead, row in enumerate(prices[:, columns].tolist()):
        by_hour[calendar.hour_of(first_slot + ahead)] += row
    everything = [price for hour in by_hour for price in hour]
    return tuple(OPENING_PART * _mean(hour or everything) for hour in by_hour)


def _mean(prices: list[float]) -> float:
    return math.fsum(prices) / len(prices)
