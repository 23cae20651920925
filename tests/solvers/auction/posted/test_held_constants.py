"""Constants of learned prices by their effects: each case fails if its constant is doubled or halved."""

import math

import numpy as np
import pytest

from solvers.auction.density_classes import class_of
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market
from solvers.auction.mechanism.mechanism import Counted
from solvers.auction.posted.day_pattern import DayPattern
from solvers.auction.posted.demand_curve import DemandCurve, haste_premium
from solvers.auction.posted.levels import Levels
from solvers.auction.posted.room import Ahead
from tests.support.markets import fleet, posted

MEMORY_SLOTS = 20
LONG_MEMORY_SLOTS = 1_000
HOUR_S = 3_600.0
DAY_SLOTS = 24


def sold(
    *offers: tuple[float, float], window_slots: int = 4, memory_slots: int = MEMORY_SLOTS
) -> DemandCurve:
    curve = DemandCurve(memory_slots)
    for density, units in offers:
        curve.sell(density, units, window_slots)
    return curve


def test_losers_count_up_to_four_times_winners():
    curve = sold((8.0, 10.0))
    curve.lose(4.0, 1_000.0)
    curve.advance(np.ones(1), 2.0)
    kept = 1 - 1 / MEMORY_SLOTS
    assert curve.density_at(49.0 * kept) == 4.0
    assert curve.density_at(51.0 * kept) == 0.0


def test_high_losers_count_a_thirty_second_of_winners():
    curve = sold((100.0, 64.0), window_slots=60)
    curve.count_full_offer(600.0, 1_000.0, 6)
    densities, units = np.array([600.0, 100.0]), np.array([2.0, 64.0])
    expected = haste_premium(densities, units, units * np.array([6.0, 60.0]), 100.0)
    assert curve.haste_premium(100.0) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("expected", "is_change"), [(0.4, False), (0.7, True)])
def test_quiet_hour_without_demand_is_no_change(expected, is_change):
    curve = DemandCurve(LONG_MEMORY_SLOTS)
    for _ in range(LONG_MEMORY_SLOTS):
        curve.sell(2.0, 1_000.0, 3)
        curve.advance(np.ones(1), 2.0)
    for _ in range(8):
        curve.advance(np.full(1, expected), 2.0)
    assert (curve.slots < LONG_MEMORY_SLOTS / 4) == is_change


def test_changed_demand_fades_memory_in_half_of_recent():
    recent_slots, kept_parts = 40.0, []
    curve = DemandCurve(LONG_MEMORY_SLOTS)
    for _ in range(LONG_MEMORY_SLOTS):
        curve.sell(2.0, 10.0, 3)
        curve.advance(np.ones(1), recent_slots)
    for _ in range(150):
        before = curve.slots
        curve.advance(np.ones(1), recent_slots)
        kept_parts.append((curve.slots - 1) / before)
    assert min(kept_parts) == pytest.approx(1 - 2 / recent_slots)


@pytest.mark.parametrize(("units", "is_kept"), [(1.4, True), (0.7, False)])
def test_faint_class_is_dropped(units, is_kept):
    curve = sold((1.0, 1e9), (64.0, units))
    curve.advance(np.ones(1), 2.0)
    assert (class_of(64.0) in curve.state()["classes"]) == is_kept


def hourly(units_by_day: list[float]) -> DayPattern:
    pattern = DayPattern(Calendar(0.0, HOUR_S), 0, DAY_SLOTS)
    for units in units_by_day:
        for _ in range(DAY_SLOTS):
            pattern.advance(1, units, 1_000.0)
    return pattern


def test_new_day_counts_a_third():
    pattern = hourly([10.0] * 8 + [40.0])
    pattern.advance(1, 40.0, 1_000.0)
    mean_units, days = pattern.state()["mean"]
    assert (mean_units, days) == (pytest.approx(20.0), 3)


@pytest.mark.parametrize(("days", "continues"), [(1.5, True), (2.5, False)])
def test_present_day_outlives_two_days_of_pause(days, continues):
    pattern = hourly([10.0])
    pattern.advance(int(days * DAY_SLOTS), 0.0, 1_000.0)
    _, day, _ = pattern.state()["present"]
    assert (day >= 0) == continues


def test_busiest_stretch_is_fifth_of_span():
    levels, curve = Levels(100), sold((1.0, 1.0), window_slots=20)
    assert levels.span_slots(curve) == 44
    assert levels.busiest_slots(curve) == 9


def test_guard_is_sixteen_bases_at_most():
    curve, levels = sold((8.0, 1_000.0), (8e6, 1_000.0)), Levels(MEMORY_SLOTS)
    levels.rise(curve, Ahead(1_900.0 / 0.2, 1e9, 8.0), math.inf, least=1e-9)
    assert levels.guard == 16 * levels.base > 0


def test_guard_without_base_has_limit():
    curve, levels = sold((8e6, 1_000.0)), Levels(MEMORY_SLOTS)
    levels.rise(curve, Ahead(1_900.0 / 0.2, 1e9, 8.0), math.inf, least=2.0)
    assert (levels.base, levels.guard) == (0.0, 2 * 1_024.0)


def test_absurd_loser_counts_six_times_its_level():
    market = Market(fleet((1, 10.0, 6.0)), MEMORY_SLOTS, 0, lambda _index, _slots: 1.0)
    prices = posted(market, HOUR_S).prices
    prices.levels.base = 8.0
    prices.lost(Counted(net_micros=10**12, compute_units=1.0, memory_units=1.0, window_slots=3))
    assert max(prices.curve.state()["classes"]) == class_of(6.0)
