"""Requested room at each price: against sorted lists of bids, and over time."""

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.density_classes import (
    CLASSES_PER_OCTAVE,
    MOST_CLASSES,
    class_of,
    least_ratio_of,
)
from solvers.auction.posted.constants import MOST_UNSOLD
from solvers.auction.posted.demand_curve import DemandCurve, power
from tests.support.examples import examples

MEMORY_SLOTS = 20
# Whole numbers, so that sums and quotients are exact.
DENSITIES = st.integers(1, 10**6)
BIDS = st.lists(st.tuples(DENSITIES, st.integers(1, 1_000)), min_size=1, max_size=12)


def curve_of(sold, unsold=()) -> DemandCurve:
    """Return the curve of winners' and then losers' offers in one slot, a slot later and not yet faded."""
    curve = DemandCurve(MEMORY_SLOTS)
    for density, units in sold:
        curve.sell(float(density), float(units), 3)
    for density, units in unsold:
        curve.lose(float(density), float(units))
    return curve


def first_without_room(curve: DemandCurve, bids, room: float) -> float:
    """The least density of the class of the first unit that has no room, by sorting."""
    taken = 0.0
    for density, units in sorted(bids, reverse=True):
        taken += units
        if taken > room:
            return curve.reference * least_ratio_of(class_of(density / curve.reference))
    return 0.0


@settings(max_examples=examples(1_000), deadline=None)
@given(st.floats(1e-300, 1e300))
def test_class_spans_ratios_to_next_bound(ratio):
    place = class_of(ratio)
    assert least_ratio_of(place) <= ratio < least_ratio_of(place + 1)
    assert least_ratio_of(place + CLASSES_PER_OCTAVE) == 2 * least_ratio_of(place)
    assert least_ratio_of(place + 1) <= least_ratio_of(place) * (1 + 1 / CLASSES_PER_OCTAVE)


@settings(max_examples=examples(1_000), deadline=None)
@given(BIDS, st.integers(0, 12_000))
def test_demand_just_fits_at_the_level(bids, room):
    curve = curve_of(bids)
    assert curve.density_at(float(room)) == first_without_room(curve, bids, room)


@settings(max_examples=examples(500), deadline=None)
@given(BIDS, st.floats(0.01, 1.0))
def test_part_of_sales_offered_a_density(bids, part):
    curve = curve_of(bids)
    total = sum(units for _, units in bids)
    assert curve.sold_density(part) == first_without_room(curve, bids, part * total)


@settings(max_examples=examples(500), deadline=None)
@given(BIDS, st.integers(0, 12_000))
def test_the_classes_are_the_same_in_any_money(bids, room):
    curve, dear = curve_of(bids), curve_of([(1_000 * density, units) for density, units in bids])
    assert curve.state()["classes"] == dear.state()["classes"]
    assert dear.density_at(float(room)) == pytest.approx(1_000 * curve.density_at(float(room)), rel=1e-15)


@settings(max_examples=examples(500), deadline=None)
@given(BIDS, BIDS, st.integers(0, 12_000))
def test_losers_count_later_and_are_limited(sold, unsold, room):
    curve = curve_of(sold)
    before = curve.density_at(float(room))
    for density, units in unsold:
        curve.lose(float(density), float(units))
    assert curve.density_at(float(room)) == before
    curve.advance(np.ones(1), 2.0)
    kept = 1 - 1 / MEMORY_SLOTS
    total = kept * sum(units for _, units in sold)
    # Whatever losers offered: beyond their share there is no demand.
    assert curve.density_at((1 + MOST_UNSOLD) * total * (1 + 1e-9)) == 0.0
    highest = max(density for density, _ in [*sold, *unsold])
    assert curve.density_at(float(room)) <= highest


@settings(max_examples=examples(1_000), deadline=None)
@given(st.floats(1e-3, 1e9), st.integers(-200, 200))
def test_loser_at_level_counts_in_any_money(first, place):
    for money in (1.0, 1_000.0):
        curve = DemandCurve(MEMORY_SLOTS)
        curve.sell(first * money, 1.0, 3)
        level = first * money * least_ratio_of(place)
        curve.lose(level, 4.0)
        curve.advance(np.ones(1), 2.0)
        assert place in curve.state()["classes"]


@settings(max_examples=examples(200), deadline=None)
@given(BIDS)
def test_where_nothing_was_sold_losers_are_no_demand(unsold):
    curve = curve_of([], unsold)
    curve.advance(np.ones(1), 2.0)
    assert curve.density_at(0.0) == 0.0
    assert curve.mean_window_slots is None


@settings(max_examples=examples(500), deadline=None)
@given(BIDS, DENSITIES, st.integers(1, 1_000), st.integers(0, 12_000))
def test_sale_released_in_slot_never_was(bids, density, units, room):
    curve, other = curve_of(bids), curve_of(bids)
    other.sell(float(density), float(units), 7)
    other.remove(float(density), float(units), 7, age_slots=0)
    assert other.density_at(float(room)) == curve.density_at(float(room))
    assert other.mean_window_slots == curve.mean_window_slots


@pytest.mark.parametrize("age_slots", [1, 5, 15])
def test_later_release_has_faded_equally(age_slots):
    curve = DemandCurve(MEMORY_SLOTS)
    curve.sell(8.0, 100.0, 3)
    for _ in range(age_slots):
        curve.advance(np.ones(1), 10_000.0)
    curve.remove(8.0, 100.0, 3, age_slots)
    assert curve.density_at(1e-9) == 0.0


def test_steady_demand_keeps_units_of_horizon():
    curve = DemandCurve(MEMORY_SLOTS)
    for _ in range(10 * MEMORY_SLOTS):
        curve.sell(2.0, 50.0, 3)
        curve.advance(np.ones(1), 4.0)
    assert curve.slots == pytest.approx(MEMORY_SLOTS, rel=1e-3)
    assert curve.units_per_slot == pytest.approx(50.0, rel=1e-3)
    assert curve.density_at(0.94 * 50.0 * MEMORY_SLOTS) == 2.0
    assert curve.density_at(1.01 * 50.0 * MEMORY_SLOTS) == 0.0


@pytest.mark.parametrize(("factor", "is_far"), [(8.0, True), (1 / 8, True), (1.5, False), (1 / 1.5, False)])
def test_unusual_day_is_detected_within_slots(factor, is_far):
    curve = DemandCurve(MEMORY_SLOTS)
    for slot in range(10 * MEMORY_SLOTS + 7):
        for _ in range(int(24 * (1.0 if slot < 10 * MEMORY_SLOTS else factor))):
            curve.sell(2.0, 10.0, 3)
        curve.advance(np.ones(1), 4.0)
    assert (curve.slots < MEMORY_SLOTS / 2) == is_far


@pytest.mark.parametrize(("expected", "is_far"), [(1 / 8, False), (1.0, True)])
def test_expected_quiet_hour_is_usual(expected, is_far):
    curve = DemandCurve(MEMORY_SLOTS)
    for slot in range(11 * MEMORY_SLOTS):
        is_quiet = slot >= 10 * MEMORY_SLOTS
        for _ in range(3 if is_quiet else 24):
            curve.sell(2.0, 10.0, 3)
        curve.advance(np.full(1, expected if is_quiet else 1.0), 4.0)
    # What is remembered is of the busy hours; or else of the quiet ones, nearly alone.
    assert (curve.sold_units / curve.slots > 200.0) != is_far
    assert (curve.sold_units / curve.slots < 60.0) == is_far


def test_triple_of_few_tasks_is_chance():
    curve = DemandCurve(MEMORY_SLOTS)
    for slot in range(10 * MEMORY_SLOTS + 3):
        curve.sell(2.0, 10.0 if slot < 10 * MEMORY_SLOTS else 30.0, 3)
        curve.advance(np.ones(1), 1.0)
    assert curve.slots == pytest.approx(MEMORY_SLOTS, rel=1e-3)


@pytest.mark.parametrize("recent_slots", [1.0, 1.5, 4.0])
def test_kept_demand_is_never_negative(recent_slots):
    curve = DemandCurve(MEMORY_SLOTS)
    for slot in range(20 * MEMORY_SLOTS):
        curve.sell(2.0, 10.0 ** (slot % 7), 3)
        curve.advance(np.ones(1), recent_slots)
        assert np.min(curve.state()["sums"]) >= 0
        assert 1 <= curve.slots <= MEMORY_SLOTS


def test_many_losers_fade_like_few():
    few, crowd = DemandCurve(MEMORY_SLOTS), DemandCurve(MEMORY_SLOTS)
    for curve, lost in ((few, MOST_UNSOLD), (crowd, 1_000.0)):
        for slot in range(4 * MEMORY_SLOTS):
            curve.sell(8.0, 1.0, 3)
            if slot < 2 * MEMORY_SLOTS:
                curve.lose(4.0, lost)
            curve.advance(np.ones(1), 2.0)
    np.testing.assert_allclose(crowd.state()["sums"], few.state()["sums"])


def test_lowered_losers_hold_up_nothing_more():
    curve = curve_of([(5, 10)], [(8, 10), (4, 10), (2, 10)])
    curve.advance(np.ones(1), 2.0)
    curve.lower_losers(3.0)
    assert [curve.density_at(units) for units in (5.0, 15.0, 25.0, 35.0)] == pytest.approx(
        [5.0, 3.0, 3.0, 2.0], rel=1 / 32
    )
    curve.lower_losers(0.0)
    assert (curve.density_at(5.0), curve.density_at(15.0)) == (pytest.approx(5.0, rel=1 / 32), 0.0)


def test_after_four_horizons_of_nothing_all_is_forgotten():
    curve = curve_of([(5, 10)], [(4, 10)])
    curve.advance(np.ones(4 * MEMORY_SLOTS + 1), 2.0)
    assert curve.density_at(0.0) == 0.0
    assert (curve.slots, curve.units_per_slot, curve.state()["classes"]) == (0.0, 0.0, [])


def test_nearly_empty_classes_are_dropped():
    curve = DemandCurve(MEMORY_SLOTS)
    for slot in range(200 * MEMORY_SLOTS):
        curve.sell(1.0 + slot % 1_000, 10.0, 3)
        curve.advance(np.ones(1), 4.0)
    octaves = 11
    assert len(curve.state()["classes"]) <= octaves * CLASSES_PER_OCTAVE


@settings(max_examples=examples(200), deadline=None)
@given(BIDS, BIDS, BIDS)
def test_it_goes_on_from_its_state(sold, unsold, after):
    curve = curve_of(sold, unsold)
    curve.advance(np.ones(2), 3.0)
    curve.lose(3.0, 7.0)
    twin = DemandCurve(MEMORY_SLOTS)
    twin.restore(msgpack.unpackb(msgpack.packb(curve.state())))
    for one in (curve, twin):
        for density, units in after:
            one.sell(float(density), float(units), 2)
        one.advance(np.ones(1), 3.0)
    assert curve.state() == twin.state()


@given(st.floats(0.0, 1.0), st.integers(0, 300))
def test_powers_by_multiplication_are_those_of_the_library(base, exponent):
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-12, abs=1e-300)


def test_merged_classes_never_raise_offers():
    curve, exact = DemandCurve(MEMORY_SLOTS), []
    for step in range(3 * MOST_CLASSES):
        density = 1.03 ** (step if step % 2 else -step / 3)
        exact.append((density, 2.0))
        if step % 3:
            curve.sell(density, 2.0, 3)
        else:
            curve.lose(density, 2.0)
    curve.advance(np.ones(1), 1.0)
    state = curve.state()
    assert len(state["classes"]) <= MOST_CLASSES
    assert np.sum(state["sums"][:2]) == pytest.approx(2.0 * len(exact) * (1 - 1 / MEMORY_SLOTS))
    for room in (0.0, 100.0, 1_000.0, 2_000.0):
        wanted = first_without_room(curve, exact, room / (1 - 1 / MEMORY_SLOTS))
        assert curve.density_at(room) <= wanted * (1 + 1e-9)


def test_many_tiny_prices_keep_other_offers():
    """They merge with each other: the lowest classes, which others are in, stay as they are."""
    curve, crowded = (curve_of([(2.0**step, 100.0) for step in range(12)]) for _ in range(2))
    for step in range(2 * MOST_CLASSES):
        crowded.sell(5_000.0 * 1.04**step, 1e-3, 3)
    assert len(crowded.state()["classes"]) <= MOST_CLASSES
    for room in (50.0, 550.0, 1_050.0):
        assert crowded.density_at(room + 2e-3 * MOST_CLASSES) == curve.density_at(room)


def test_sale_of_merged_class_is_released_there():
    curve = curve_of([(1.05**step, 1.0 + step) for step in range(2 * MOST_CLASSES)])
    sold = curve.sold_units
    for step in range(2 * MOST_CLASSES):
        curve.remove(1.05**step, 0.1, 3, age_slots=0)
    assert curve.sold_units == pytest.approx(sold - 0.2 * MOST_CLASSES)
    assert len(curve.state()["classes"]) <= MOST_CLASSES


@pytest.mark.parametrize("density", [0.0, 1e-3, 1.0])
def test_losing_flood_keeps_memory_of_sales(density):
    """It is free, so it may not look like a day unlike the last."""
    steady, flooded = DemandCurve(MEMORY_SLOTS), DemandCurve(MEMORY_SLOTS)
    for slot in range(4 * MEMORY_SLOTS):
        for curve in (steady, flooded):
            curve.sell(2.0, 10.0, 3)
        if slot >= 2 * MEMORY_SLOTS:
            flooded.lose(density, 1e6)
        for curve in (steady, flooded):
            curve.advance(np.ones(1), 2.0)
    assert flooded.slots == steady.slots


def test_free_demand_is_usual_too():
    """Demand of the usual size from which no bid offers more than operation costs: no reason to forget."""
    steady = DemandCurve(MEMORY_SLOTS)
    for _ in range(2 * MEMORY_SLOTS):
        steady.sell(1.0, 10.0, 3)
        steady.lose(0.0, 100.0)
        steady.advance(np.ones(1), 2.0)
    assert steady.slots > 0.8 * MEMORY_SLOTS


def test_huge_loser_keeps_memory():
    alone, beside = (curve_of([(8, 3), (1, 5)]) for _ in range(2))
    beside.lose(2.0, 1e18)
    beside.count_full_offer(2.5, 1e18, 1)
    for _ in range(3):
        for curve in (alone, beside):
            curve.sell(4.0, 2.0, 3)
            curve.advance(np.ones(1), 2.0)
    assert beside.sold_density(0.99) == alone.sold_density(0.99) > 0
    assert beside.mean_window_slots == pytest.approx(alone.mean_window_slots)


def test_large_share_is_weighted_by_units():
    curve = DemandCurve(MEMORY_SLOTS)
    assert (curve.large_share, curve.packed_part) == (0.0, 1.0)
    curve.sell(8.0, 30.0, 3, share=0.9)
    curve.sell(2.0, 10.0, 3, share=0.4)
    assert curve.large_share == pytest.approx(0.75 * 0.9)
    assert curve.packed_part == pytest.approx(0.75 * 0.9 + 0.25)
    curve.advance(np.ones(2), 2.0)
    curve.remove(8.0, 30.0, 3, age_slots=2, share=0.9)
    assert (curve.large_share, curve.packed_part) == (pytest.approx(0.0), pytest.approx(1.0))


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(st.tuples(DENSITIES, st.integers(1, 1_000), st.floats(1e-6, 1.0), st.booleans()), min_size=1),
    st.integers(0, 3),
)
def test_packed_part_is_at_least_half(sales, slots):
    curve = DemandCurve(MEMORY_SLOTS)
    for density, units, share, _ in sales:
        curve.sell(float(density), float(units), 3, share)
    if slots:
        curve.advance(np.ones(slots), 2.0)
    for density, units, share, is_withdrawn in sales:
        if is_withdrawn:
            curve.remove(float(density), float(units), 3, slots, share)
    assert 1 / 2 <= curve.packed_part <= 1
    assert 0 <= curve.large_share <= 1
