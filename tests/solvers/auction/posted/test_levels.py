"""Levels rise by what is sold, fall by a part, and give back what withdrawn bids raised them by."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.posted.demand_curve import DemandCurve
from solvers.auction.posted.levels import NO_RISE, RISE_PER_SHARE, Levels, Rise, least_level
from tests.support.examples import examples

HORIZON_SLOTS = 20
SALES = st.lists(
    st.tuples(st.floats(0.01, 1e9), st.floats(1.0, 500.0), st.floats(0.0, 0.05)), min_size=1, max_size=20
)
"""Density, units, and the share of the room that they are."""


def sell(levels: Levels, curve: DemandCurve, sale, free_units: float = 1_000.0) -> Rise:
    density, units, share = sale
    before = replace(levels)
    curve.sell(density, units, 4)
    levels.rise(curve, free_units, share, least=0.001)
    return Rise.between(before, levels)


@settings(max_examples=examples(500))
@given(SALES)
def test_a_sale_raises_a_level_by_a_factor_for_its_share_of_the_room(sales):
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    sold_share, least = 0.0, 0.001
    for sale in sales:
        before = replace(levels)
        sell(levels, curve, sale)
        factor = 1 + RISE_PER_SHARE * sale[2]
        for old, new in ((before.base, levels.base), (before.guard, levels.guard)):
            assert old <= new <= max(old, least) * factor
        assert levels.base <= levels.guard
        sold_share += sale[2]
        assert levels.guard <= least * math.exp(RISE_PER_SHARE * sold_share) * (1 + 1e-9)


def test_half_a_per_cent_of_the_room_doubles_a_level_at_most():
    assert math.exp(RISE_PER_SHARE * 0.005) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("window_slots", "fall"), [(1, 0.5), (4, 5 / 13), (9, 5 / 24), (200, 0.2)])
def test_prices_fall_by_half_a_slot_at_most_and_more_slowly_the_farther_they_look(window_slots, fall):
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    curve.sell(1.0, 1.0, window_slots)
    assert levels.span_slots(curve) == min(int(2.2 * window_slots), HORIZON_SLOTS)
    assert levels.fall(curve) == pytest.approx(fall)


def test_a_level_begins_with_a_part_of_what_operation_costs_or_of_the_lowest_offer():
    assert least_level(16.0, None) == least_level(16.0, 5.0) == 1.0
    assert least_level(0.0, 64.0) == 1.0
    assert least_level(0.0, None) == 0.0


@settings(max_examples=examples(500))
@given(SALES, SALES, st.permutations(range(20)), st.floats(0.1, 1.0))
def test_what_sales_raised_levels_by_is_undone_in_any_order_and_however_late(sales, undone, order, kept):
    """Where no demand is left, the levels are those that fell from before the sales."""
    curve, levels = DemandCurve(HORIZON_SLOTS), Levels(HORIZON_SLOTS)
    for sale in sales:
        sell(levels, curve, sale)
    before = replace(levels)
    rises = [sell(levels, curve, sale) for sale in undone]
    levels.sink(kept)
    rise = NO_RISE
    for place in [place for place in order if place < len(rises)]:
        rise = rise.times(rises[place])
    part = levels.undo(rise, DemandCurve(HORIZON_SLOTS), free_units=0.0)
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
        curve.take_back(density, units, 4, age_slots=0)
    before, wanted = replace(levels), Levels(HORIZON_SLOTS)
    wanted.rise(curve, 1_000.0, 0.0, least=math.inf)
    levels.undo(rise, curve, 1_000.0)
    for now, old, asked in (
        (levels.base, before.base, wanted.base),
        (levels.guard, before.guard, wanted.guard),
    ):
        assert min(old, asked) <= now <= old
