"""Room that is kept for those who offer much and cannot wait, and that a few bids cannot make a zone keep."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.market import Market
from solvers.auction.posted.demand_curve import DemandCurve, haste_premium
from tests.support.examples import examples
from tests.support.markets import award, demand, fleet, posted

HORIZON_SLOTS = 72
DAY_SLOTS = 144
OPERATION_MICROS = 10_000
TYPICAL = 100.0
SALES = st.lists(
    st.tuples(st.floats(1.0, 1e6), st.floats(0.1, 1e3), st.integers(1, HORIZON_SLOTS)), min_size=1, max_size=8
)
"""Density, units and window of each."""


def premium(*sales: tuple[float, float, int], money: float = 1.0) -> float:
    densities, units, slots = (np.array(column, float) for column in zip(*sales, strict=True))
    return haste_premium(densities * money, units, units * slots, TYPICAL * money)


def test_urgent_high_offer_is_worth_premium():
    # A fifth offers three times the typical beyond what is much, with a tenth of the time of all others.
    mean_window = (80 * 60 + 20 * 6) / 100
    expected = 3 * TYPICAL * (1 - 2 * 6 / mean_window)
    assert premium((TYPICAL, 80.0, 60), (5 * TYPICAL, 20.0, 6)) == pytest.approx(expected)


def test_an_absurd_offer_counts_six_times_the_typical():
    absurd, counted = (premium((TYPICAL, 80.0, 60), (offer * TYPICAL, 20.0, 6)) for offer in (100, 6))
    assert absurd == counted > premium((TYPICAL, 80.0, 60), (5 * TYPICAL, 20.0, 6))


def test_rarer_urgency_reserves_less():
    common, rare, rarer = (
        premium((TYPICAL, 1_000.0, 60), (12 * TYPICAL, units, 6)) for units in (100, 10, 1)
    )
    assert common > 8 * rare > 75 * rarer > 0


@pytest.mark.parametrize(
    "sales",
    [
        [(TYPICAL, 90.0, 60), (12 * TYPICAL, 10.0, 60)],
        [(TYPICAL, 90.0, 60), (12 * TYPICAL, 10.0, 30)],
        [(TYPICAL, 90.0, 60), (2 * TYPICAL, 10.0, 6)],
        [(12 * TYPICAL, 90.0, 6)],
        [(TYPICAL, 90.0, 6), (12 * TYPICAL, 10.0, 60)],
    ],
    ids=["as much time", "half as much", "offers not much", "alone", "others in haste"],
)
def test_equal_time_reserves_nothing(sales):
    assert premium(*sales) == 0.0


@settings(max_examples=examples(1_000), deadline=None)
@given(SALES)
def test_absurd_offer_counts_limited_in_any_money(sales):
    most = 4 * TYPICAL
    found = premium(*sales)
    assert 0 <= found <= most
    absurd_units = sum(units for density, units, _ in sales if density > 2 * TYPICAL)
    assert found <= 8 * most * absurd_units / sum(units for _, units, _ in sales) * (1 + 1e-9)
    assert premium(*sales, money=1_024.0) == 1_024 * found


def test_without_a_sale_nothing_is_known():
    curve = DemandCurve(HORIZON_SLOTS)
    assert curve.haste_premium(TYPICAL) == 0.0
    curve.sell(12 * TYPICAL, 5.0, 3)
    curve.remove(12 * TYPICAL, 5.0, 3, 0)
    assert curve.haste_premium(TYPICAL) == 0.0


@dataclass
class Day:
    """Value of a day's bids, in micros beyond operation."""

    won_micros: int = 0
    urgent_micros: int = 0
    """Value of the urgent bids that won."""
    lost_urgent_micros: int = 0
    rogue_paid_micros: int = 0


def a_day(
    seed: int, urgent_part: float = 0.0, rogue_every: int | None = None, rogue_node_slots: int = 1
) -> Day:
    """Four nodes, asked for three times what they can do by tasks of five node-slots, which can wait for half
    a day.

    Args:
        urgent_part: in how many slots a task of two node-slots and five slots of time comes, which is worth
            thirty times as much per node-slot.
        rogue_every: in every so many slots a task comes that has two slots of time and an absurd bid.
        rogue_node_slots: what it needs; the two slots have eight.
    """
    zone = fleet((4, 10.0, 8.0))
    market = Market(zone, HORIZON_SLOTS, 0, lambda _index, _slots: OPERATION_MICROS)
    auctioneer = posted(market, 600.0)
    draw, day = random.Random(seed), Day()

    def price_paid(slot: int, node_slots: int, within_slots: int, bid_micros: int) -> int | None:
        wanted = demand(zone, 10 * node_slots, [10], 1.0)
        won = award(auctioneer, bid_micros, wanted, slot + 1, slot + within_slots)
        return None if won is None else won.charge.micros

    for slot in range(DAY_SLOTS):
        auctioneer.advance(slot + 1)
        for _ in range(int(2.4 + draw.random())):
            value_micros = int(250_000 * draw.lognormvariate(0, 0.2))
            if price_paid(slot, 5, HORIZON_SLOTS - 1, value_micros) is not None:
                day.won_micros += value_micros - 5 * OPERATION_MICROS
        if draw.random() < urgent_part:
            value_micros = int(3_000_000 * draw.lognormvariate(0, 0.2))
            worth_micros = value_micros - 2 * OPERATION_MICROS
            if price_paid(slot, 2, 5, value_micros) is None:
                day.lost_urgent_micros += worth_micros
            else:
                day.won_micros += worth_micros
                day.urgent_micros += worth_micros
        if rogue_every is not None and slot % rogue_every == 0:
            day.rogue_paid_micros += price_paid(slot, rogue_node_slots, 2, 10**12) or 0
    return day


@pytest.mark.parametrize("seed", range(3))
def test_urgent_tasks_find_room_among_patient_ones(seed):
    day = a_day(seed, urgent_part=0.2)
    assert day.urgent_micros > 3 * day.lost_urgent_micros


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rogue_every", "rogue_node_slots", "most_part"),
    [(12, 1, 0.02), (4, 1, 0.1), (1, 8, 0.01)],
    ids=["a fiftieth of the room", "a sixteenth of the room", "losers"],
)
@pytest.mark.parametrize("seed", range(3))
def test_absurd_urgent_bids_reserve_little(seed, rogue_every, rogue_node_slots, most_part):
    """Value of bids that can all wait, where plans leave room in near slots only for a rogue."""
    undisturbed, disturbed = a_day(seed), a_day(seed, 0.0, rogue_every, rogue_node_slots)
    lost_micros = undisturbed.won_micros - disturbed.won_micros
    paid_micros = disturbed.rogue_paid_micros
    print(f"lost {lost_micros / undisturbed.won_micros:.1%}, {lost_micros} micros for {paid_micros}")  # noqa: T201
    assert lost_micros < most_part * undisturbed.won_micros
    assert lost_micros <= 2 * paid_micros
