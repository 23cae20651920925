"""Prices of a zone on the morning after a night without a bid."""

import random
from collections.abc import Collection
from statistics import fmean

import pytest

from solvers.auction.market.market import Market
from tests.support.markets import award, demand, fleet, posted

DAY_SLOTS = 24
HOUR_S = 3_600.0


class Days:
    """Four nodes, and from 8 to 18 o'clock six bids per slot, three times what they can do; by night none.

    Where slots last a second, all of them are in the same hour, and nothing is known of the hours.
    """

    def __init__(self, slot_s: float) -> None:
        self.fleet = fleet((4, 10.0, 8.0))
        market = Market(self.fleet, DAY_SLOTS, 0, lambda _index, _slots: 1_000.0)
        self.auctioneer = posted(market, slot_s)
        self.prices = self.auctioneer.prices
        self.draw = random.Random("mornings")

    def day(
        self, day: int, *, withdrawn_at_three: int = 0, flooded_hours: Collection[int] = ()
    ) -> list[float]:
        """The base level after each bid in turn.

        Args:
            withdrawn_at_three: so many high bids of three o'clock are withdrawn at once.
            flooded_hours: in which two hundred large bids of next to nothing lose.
        """
        levels = []
        for hour in range(DAY_SLOTS):
            slot = day * DAY_SLOTS + hour
            self.auctioneer.advance(slot + 1)
            for _ in range(withdrawn_at_three if hour == 3 else 0):
                wanted = demand(self.fleet, 200, [10], 1.0)
                won = award(self.auctioneer, 10**9, wanted, slot + 1, slot + DAY_SLOTS)
                assert won is not None
                self.auctioneer.withdraw(won.schedule.placement, wanted, won.counted)
            for _ in range(200 if hour in flooded_hours else 0):
                wanted = demand(self.fleet, 200, [10], 1.0)
                assert award(self.auctioneer, 1, wanted, slot + 1, slot + DAY_SLOTS) is None
            for _ in range(6 if 8 <= hour < 18 else 0):
                wanted = demand(self.fleet, 20, [10], 1.0)
                award(self.auctioneer, round(self.draw.uniform(5e3, 5e4)), wanted, slot + 1, slot + 6)
                levels.append(self.prices.levels.base)
        return levels


def test_two_awards_restore_price_on_fourth_morning():
    knowing, unknowing = Days(HOUR_S), Days(1.0)
    for day in (0, 1):
        assert knowing.day(day) == unknowing.day(day)
    for days in (knowing, unknowing):
        days.day(2)
    morning, unknown_morning = knowing.day(3), unknowing.day(3)
    assert morning[2] > 0.8 * fmean(morning[-30:])
    assert max(unknown_morning[:6]) < 0.3 * fmean(unknown_morning[-30:])
    assert knowing.prices.pattern.believed_part > 0.6
    assert unknowing.prices.pattern.believed_part == 0.0


def test_expected_night_is_kept_for_a_day():
    days = Days(HOUR_S)
    for day in range(5):
        days.day(day)
    assert days.prices.curve.slots > 0.7 * DAY_SLOTS


def test_bids_withdrawn_in_slot_form_no_habit():
    alone, attacked = Days(HOUR_S), Days(HOUR_S)
    for days, withdrawn in ((alone, 0), (attacked, 20)):
        days.day(0)
        for day in (1, 2, 3):
            days.day(day, withdrawn_at_three=withdrawn)
    assert attacked.prices.pattern.state()["sums"] == pytest.approx(
        alone.prices.pattern.state()["sums"], rel=0.2
    )
    assert attacked.prices.pattern.believed_part > 0.6
    first, other = (fmean(days.day(4)[10:]) for days in (alone, attacked))
    assert other == pytest.approx(first, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("hours", [(3,), (9,), (8, 9, 10), (16, 17)])
def test_free_floods_in_hours_move_prices_little(hours):
    flooded, usual = Days(HOUR_S), Days(HOUR_S)
    for day in range(4):
        flooded.day(day, flooded_hours=hours)
        usual.day(day)
    levels, usual_levels = flooded.day(4, flooded_hours=hours), usual.day(4)
    assert fmean(levels) == pytest.approx(fmean(usual_levels), rel=0.05)
    assert max(levels) < 1.1 * max(usual_levels)
