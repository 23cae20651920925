"""A day unlike the days before it, for a zone that has learned their hours."""

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from solvers.auction.market.market import Market
from tests.support.markets import award, demand, fleet, posted

SLOT_S = 600.0
PER_HOUR = 6
DAY_SLOTS = 24 * PER_HOUR
HORIZON_SLOTS = 36
COST_MICROS = 40_000
SEEDS = range(4)

BidsPerSlot = Callable[[int], float]
"""By hour of the day."""


def working_hours(hour: int) -> float:
    return 5.0 if 8 <= hour < 18 else 0.05


def nights(hour: int) -> float:
    return 5.0 if hour >= 20 or hour < 6 else 0.05


def a_burst_at(burst_hour: int) -> BidsPerSlot:
    return lambda hour: 30.0 if hour == burst_hour else 0.05


class Zone:
    """Four nodes and tasks of two node-slots.

    Where slots last a second, nothing is known of the hours, which is all that the length of a slot is for.
    """

    def __init__(self, slot_s: float) -> None:
        self.fleet = fleet((4, 10.0, 8.0))
        market = Market(self.fleet, HORIZON_SLOTS, 0, lambda _index, _slots: COST_MICROS / 2)
        self.auctioneer = posted(market, slot_s)
        self.day = 0

    def pass_day(self, bids_per_slot: BidsPerSlot, seed: int) -> int:
        """The value of the bids that won, less the cost of their work, in micros."""
        draw, won_micros = random.Random(f"{seed}-{self.day}"), 0
        for slot in range(self.day * DAY_SLOTS, (self.day + 1) * DAY_SLOTS):
            self.auctioneer.advance(slot + 1)
            mean = bids_per_slot(slot // PER_HOUR % 24)
            for _ in range(int(mean) + (draw.random() < mean % 1)):
                wanted = demand(self.fleet, 20, [10], 1.0)
                last_slot = slot + draw.randint(6, HORIZON_SLOTS - 1)
                bid_micros = int(draw.lognormvariate(0, 1) * 300_000)
                if award(self.auctioneer, bid_micros, wanted, slot + 1, last_slot) is not None:
                    won_micros += bid_micros - COST_MICROS
        self.day += 1
        return won_micros


def gain_by_hours_pct(habit: BidsPerSlot, day: BidsPerSlot) -> float:
    """Return the gain of the sixth day over that of a zone without hours, in percent, as the mean over
    seeds."""
    gains = []
    for seed in SEEDS:
        worth = []
        for slot_s in (SLOT_S, 1.0):
            zone = Zone(slot_s)
            for _ in range(5):
                zone.pass_day(habit, seed)
            worth.append(zone.pass_day(day, seed))
        gains.append(100 * (worth[0] / worth[1] - 1))
    return fmean(gains)


@pytest.mark.long
@pytest.mark.parametrize(
    ("habit", "day", "least_pct"),
    [
        (working_hours, working_hours, 0.5),
        (a_burst_at(9), a_burst_at(9), 5.0),
        (working_hours, nights, -3.0),
        (working_hours, lambda _: 2.0, -3.0),
        (working_hours, lambda _: 4.0, -3.0),
        (a_burst_at(9), a_burst_at(8), -3.0),
        (a_burst_at(9), a_burst_at(21), -3.0),
        (a_burst_at(9), lambda _: 2.0, -3.0),
        (a_burst_at(9), lambda _: 4.0, -3.0),
    ],
    ids=[
        "working hours again",
        "a burst again",
        "working hours, then nights",
        "working hours, then none",
        "working hours, then none and more bids",
        "a burst an hour earlier",
        "a burst at another time",
        "a burst, then none",
        "a burst, then none and more bids",
    ],
)
def test_hours_gain_under_habit_and_lose_little(habit, day, least_pct):
    gain_pct = gain_by_hours_pct(habit, day)
    print(f"gain {gain_pct:+.1f} %")  # noqa: T201
    assert gain_pct > least_pct
