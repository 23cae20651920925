"""Work that arrives within an hour and has a day of time: most of it fits, so most of it is to be sold."""

import random

import pytest

from solvers.auction.market.market import Market
from tests.support.markets import award, demand, fleet, posted

SLOT_S = 600.0
DAY_SLOTS = 144
COST_MICROS = 40_000
NODES = 4


def sold_part(room_part: float, deviation: float, first_slot: int, burst_slots: int, days: int) -> float:
    """Return the sold share of the value of the last day's bids, less the cost of their work.

    On each, tasks of two node-slots that ask for a part of the day's room come in some slots, and may run for
    a day.
    """
    nodes = fleet((NODES, 10.0, 8.0))
    market = Market(nodes, DAY_SLOTS, 0, lambda _index, _slots: COST_MICROS / 2)
    auctioneer = posted(market, SLOT_S)
    bids = round(room_part * DAY_SLOTS * NODES / 2)
    for day in range(days):
        won = asked = 0.0
        for slot in range(day * DAY_SLOTS, (day + 1) * DAY_SLOTS):
            auctioneer.advance(slot + 1)
            passed = slot % DAY_SLOTS - first_slot
            for number in range(passed, bids, burst_slots) if 0 <= passed < burst_slots else ():
                draw = random.Random(f"{day}-{number}-{deviation}")
                value = int(draw.lognormvariate(0, deviation) * 300_000)
                last_slot = slot - passed + DAY_SLOTS - 1
                asked += max(value - COST_MICROS, 0)
                if award(auctioneer, value, demand(nodes, 20, [10], 1.0), slot + 1, last_slot) is not None:
                    won += value - COST_MICROS
    return won / asked


@pytest.mark.parametrize(
    ("room_part", "deviation", "burst_slots", "least_part"),
    [(0.5, 1.0, 1, 0.98), (0.7, 1.0, 6, 0.9), (0.7, 0.3, 6, 0.9)],
)
def test_fitting_first_burst_is_mostly_sold(room_part, deviation, burst_slots, least_part):
    assert sold_part(room_part, deviation, 0, burst_slots, days=1) > least_part


@pytest.mark.slow
@pytest.mark.parametrize(("deviation", "least_part"), [(1.0, 0.93), (0.3, 0.87)])
def test_a_burst_that_comes_every_morning_is_sold(deviation, least_part):
    assert sold_part(0.7, deviation, 54, 6, days=6) > least_part
