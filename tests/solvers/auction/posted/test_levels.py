"""Levels rise by what is sold, fall by a part, and give back what withdrawn bids raised them by."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from solvers.auction.posted.constants import RISE_PER_SHARE
from solvers.auction.posted.demand_curve import DemandCurve
from solvers.auction.posted.levels import NO_RISE, Levels, Rise, least_level
from solvers.auction.posted.room import Ahead
from tests.support.examples import examples

HORIZON_SLOTS = 20
AHEAD = Ahead(1_000.0, 10_000.0, 8.0)
SALES = st.lists(
    st.tuples(st.floats(0.01, 1e9), st.floats(1.0, 500.0), st.floats(0.0, 0.05)), min_size=1, max_size=20
)
"""Density, units, and the share of the room that they are."""


def sell(levels: Levels, curve: DemandCurve, sale) -> Rise:
    density, units, share = sale
    before = replace(levels)
    curve.sell(density, units, 4)
    levels.rise(curve, AHEAD, share * AHEAD.whole, least=0.001)
    return Rise.between(before, levels)


@settings(max_examples=examples(500))
@given(SALES)
def test_sale_raises_level_by_share_of_room(sales):
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    sold_share, least = 0.0, 0.001
    for sale in sales:
        before = replace(levels)
        sell(levels, curve, sale)
        factor = 1 + RISE_PER_SHARE * sale[2]
        for old, new in ((before.base, levels.base), (before.guard, levels.guard)):
            assert old <= new <= max(old, least) * factor * (1 + 1e-12)
        assert levels.base <= levels.guard
        sold_share += sale[2]
        assert levels.guard <= least * math.exp(RISE_PER_SHARE * sold_share) * (1 + 1e-9)


def test_half_percent_at_most_doubles_level():
    assert math.exp(RISE_PER_SHARE * 0.005) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("window_slots", "fall"), [(1, 0.5), (4, 5 / 13), (9, 5 / 24), (200, 0.2)])
def test_prices_fall_slower_with_longer_outlook(window_slots, fall):
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    curve.sell(1.0, 1.0, window_slots)
    assert levels.span_slots(curve) == min(int(2.2 * window_slots), HORIZON_SLOTS)
    assert levels.fall(curve) == pytest.approx(fall)


def test_level_begins_at_part_of_cost_or_offer():
    assert least_level(16.0, 0.0) == least_level(16.0, 5.0) == 1.0
    assert least_level(0.0, 64.0) == 1.0
    assert least_level(0.0, 0.0) == 0.0


@settings(max_examples=examples(500))
@given(SALES, SALES, st.permutations(range(20)), st.floats(0.1, 1.0))
def test_raises_are_undone_in_any_order(sales, undone, order, kept):
    """Where no demand is left, the levels are those that fell from before the sales."""
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    for sale in sales:
        sell(levels, curve, sale)
    before = replace(levels)
    rises = [sell(levels, curve, sale) for sale in undone]
    levels.lower(kept)
    rise = NO_RISE
    for place in [place for place in order if place < len(rises)]:
        rise = rise.times(rises[place])
    part = levels.undo(rise, DemandCurve(HORIZON_SLOTS), Ahead(0.0, 10_000.0, 8.0))
    assert levels.base == pytest.approx(kept * before.base, rel=1e-9)
    assert levels.guard == pytest.approx(kept * before.guard, rel=1e-9)
    assert 0.0 <= part <= 1 + 1e-9


@settings(max_examples=examples(500))
@given(SALES, SALES)
def test_undoing_leaves_what_the_other_demand_asks_for(sales, undone):
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    rise = NO_RISE
    for sale in undone:
        rise = rise.times(sell(levels, curve, sale))
    for sale in sales:
        sell(levels, curve, sale)
    for density, units, _ in undone:
        curve.remove(density, units, 4, age_slots=0)
    before, wanted = replace(levels), Levels(HORIZON_SLOTS)
    wanted.rise(curve, AHEAD, 0.0, least=math.inf)
    levels.undo(rise, curve, AHEAD)
    for now, old, asked in (
        (levels.base, before.base, wanted.base),
        (levels.guard, before.guard, wanted.guard),
    ):
        assert min(old, asked) <= now <= old


@settings(max_examples=examples(500))
@given(SALES, SALES, st.floats(0.0, 10_000.0))
@example(sales=[(1.0, 1.0, 0.0)], undone=[(1.0, 200.0, 0.0)], free=25.0)
def test_guard_exceeds_base_for_any_room(sales, undone, free):
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    rise = NO_RISE
    for sale in undone:
        rise = rise.times(sell(levels, curve, sale))
    for sale in sales:
        sell(levels, curve, sale)
    for density, units, _ in undone:
        curve.remove(density, units, 4, age_slots=0)
    levels.undo(rise, curve, Ahead(free, 10_000.0, 8.0))
    assert 0.0 <= levels.base <= levels.guard


@pytest.mark.parametrize(
    ("high", "tasks_that_fill_it", "kept_part"),
    [(1e12, 9, 1 / 2), (1e12, 16, 3 / 7), (1e12, 1_600, 3 / 43), (16.0, 4, 3 / 7), (8.0, 1, 0.0)],
)
def test_few_and_varied_tasks_raise_guard(high, tasks_that_fill_it, kept_part):
    """The level rises as soon as all that is asked for, half of it at 8 and half at a higher density, does
    not fit into the rest."""
    whole, memory_slots, between_slots = (
        10_000.0,
        100 * HORIZON_SLOTS,
        -(-HORIZON_SLOTS // tasks_that_fill_it),
    )
    curve = DemandCurve(memory_slots)
    for _ in range(4 * memory_slots // between_slots):
        for density in (8.0, high):
            curve.sell(density, whole / tasks_that_fill_it, HORIZON_SLOTS)
        curve.advance(np.ones(between_slots), float(memory_slots))
    assert curve.mean_sale_units == pytest.approx(whole / tasks_that_fill_it)
    expected = curve.sold_units / (curve.slots / HORIZON_SLOTS + 0.2)
    for part, is_dear in ((1.01, False), (0.99, True)):
        levels = Levels(HORIZON_SLOTS)
        ahead = Ahead(part * expected / (1 - kept_part), whole, HORIZON_SLOTS)
        levels.rise(curve, ahead, 0.0, least=math.inf)
        assert (levels.base > 0) == is_dear


def test_some_of_equal_offers_win():
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    for _ in range(100):
        curve.sell(8.0, 40.0, 4)
    levels.rise(curve, AHEAD, 0.0, least=math.inf)
    assert levels.base == levels.guard < levels.lost_at == 8.0


def test_doubled_expectation_halves_assumed_room():
    curve, levels, others = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    for density in range(1, 200):
        curve.sell(float(density), 50.0, 4)
    curve.advance(np.ones(1), 2.0)
    # So that nothing is added for demand that is not recorded yet.
    curve.slots = 1e6
    levels.rise(curve, AHEAD._replace(free=0.01, expected_slots=16.0), 0.0, least=math.inf)
    others.rise(curve, AHEAD._replace(free=0.005), 0.0, least=math.inf)
    assert (levels.base, levels.guard) == pytest.approx((others.base, others.guard), rel=1e-6)
    assert levels.base > 0


def levels_after(sold_units: float, slots: int, lost_units: float = 0.0) -> Levels:
    """Return the levels of a full zone with room for 500 that sold `sold_units` over its first slots at 8."""
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    for _ in range(slots):
        curve.sell(8.0, sold_units / slots, HORIZON_SLOTS)
        curve.lose(7.0, lost_units / slots)
        curve.advance(np.ones(1), HORIZON_SLOTS)
    levels.rise(curve, Ahead(0.0, 10_000.0, HORIZON_SLOTS), 0.0, least=math.inf)
    return levels


@pytest.mark.parametrize(
    ("sold_units", "slots", "part"),
    [(2_000.0, 1, 1.0), (4_000.0, 1, 2 / 3), (4_000.0, 2, 1.0), (1e9, 1, 1 / 3)],
)
def test_burst_raises_levels_by_its_chance(sold_units, slots, part):
    """Four times a slot's room may go on all day. The chance that more does is a third."""
    sold_units /= 1 - 1 / HORIZON_SLOTS  # which are forgotten when the slot ends
    levels = levels_after(sold_units, slots)
    assert levels.base == levels.guard == pytest.approx(part * 8.0 * (1 - 1 / 32), rel=1e-4)


@settings(max_examples=examples(300))
@given(st.floats(100.0, 10_000.0), st.integers(1, 8), st.floats(0.0, 1e6))
def test_losing_bids_make_no_burst(sold_units, slots, lost_units):
    alone, flooded = (levels_after(sold_units, slots, lost) for lost in (0.0, lost_units))
    assert flooded.base >= alone.base
    assert flooded.guard >= alone.guard
