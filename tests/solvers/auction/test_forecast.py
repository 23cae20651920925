"""Opening prices from a day before: there is just room, in every slot, for what tasks then ask."""

import math
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.base import HOURS_PER_DAY
from solvers.auction.forecast import OPENING_PART, EvenDemand, forecast_opening_prices
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.window import undominated
from solvers.auction.offline.instance import Instance, OfferedTask
from tests.support.instances import FIRST_SLOT, NO_VENDOR, empty_instance, random_instance
from tests.support.markets import demand, fleet

HOURLY = Calendar(0.0, 3_600.0)


def evenly(instance: Instance, prices: np.ndarray) -> np.ndarray:
    """`EvenDemand.asked` slot by slot, as one would write it down."""
    asked = np.zeros_like(prices)
    for task in instance.tasks:
        first, stop = task.first_slot - FIRST_SLOT, task.last_slot - FIRST_SLOT + 1
        offers = []
        for option in undominated(task.options):
            columns = range(first + option.delay_slots, stop)
            for index, samples in enumerate(task.demand.samples.tolist()):
                if samples and math.ceil(task.demand.work_samples / samples) <= len(columns):
                    slots = math.ceil(task.demand.work_samples / samples)
                    compute, memory = task.demand.compute_share[index], task.demand.memory_share[index]
                    per_slot = [
                        compute * (prices[0, c, index] + instance.full_costs[c, index])
                        + memory * prices[1, c, index]
                        for c in columns
                    ]
                    cost = option.price_micros + slots * np.mean(per_slot)
                    offers.append((cost, columns, index, slots, compute, memory))
        cost, columns, index, slots, compute, memory = min(offers, default=(math.inf,) * 6)
        if cost < task.bid_micros:
            asked[0, list(columns), index] += slots * compute / len(columns)
            asked[1, list(columns), index] += slots * memory / len(columns)
    return asked


@settings(deadline=None)
@example(seed=47, tasks=2, slots=4)
@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(1, 5))
def test_demand_is_even_over_cheapest_slots(seed, tasks, slots) -> None:
    rng = random.Random(seed)
    instance = random_instance(rng, tasks=tasks, slots=slots, is_empty=True)
    prices = np.array(
        [[[rng.uniform(0, 20) for _ in instance.fleet.classes] for _ in range(slots)] for _ in range(2)]
    )
    assert EvenDemand(instance).asked(prices) == pytest.approx(evenly(instance, prices), abs=1e-9)


def crowd(count: int, slots: int = 2, work_slots: int = 1, nodes: int = 1) -> Instance:
    """Return `count` tasks of 1,000 micros per slot of work, each for a whole node in any of the slots."""
    of = fleet((nodes, 10.0, 4.0))
    wanted = demand(of, 10 * work_slots, [10], 1.0)
    last_slot = FIRST_SLOT + slots - 1
    tasks = [
        OfferedTask(f"j{n}", 1_000 * work_slots, wanted, NO_VENDOR, FIRST_SLOT, last_slot)
        for n in range(count)
    ]
    return empty_instance(of, slots, tasks)


def test_sufficient_room_has_no_price() -> None:
    (forecast,) = forecast_opening_prices(crowd(2), HOURLY)
    assert set(forecast.compute_micros) == set(forecast.memory_micros) == {0.0}


def test_scarce_room_opens_below_its_offers() -> None:
    (forecast,) = forecast_opening_prices(crowd(12), HOURLY)
    price = forecast.compute_micros[FIRST_SLOT] + forecast.memory_micros[FIRST_SLOT] / 4
    assert price == pytest.approx(OPENING_PART * 1_000.0, rel=0.25)


def test_slots_of_late_tasks_cost_more() -> None:
    instance = crowd(0, slots=8)
    wanted = demand(instance.fleet, 10, [10], 1.0)
    instance.tasks.extend(
        OfferedTask(f"j{n}", 1_000, wanted, NO_VENDOR, FIRST_SLOT + n % 8, FIRST_SLOT + 7) for n in range(24)
    )
    (forecast,) = forecast_opening_prices(instance, HOURLY)
    by_slot = forecast.compute_micros[FIRST_SLOT : FIRST_SLOT + 8]
    assert by_slot[0] < by_slot[4] < by_slot[7]


def test_missing_hours_get_the_mean() -> None:
    (forecast,) = forecast_opening_prices(crowd(12), HOURLY)
    assert len(forecast.compute_micros) == HOURS_PER_DAY
    known = forecast.compute_micros[FIRST_SLOT : FIRST_SLOT + 2]
    assert forecast.compute_micros[0] == pytest.approx(sum(known) / 2)


def test_no_tasks_no_prices() -> None:
    (forecast,) = forecast_opening_prices(crowd(0), HOURLY)
    assert set(forecast.compute_micros) == {0.0}
