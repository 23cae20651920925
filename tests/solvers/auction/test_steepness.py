"""Steepness of prices, learned from earlier bids."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.auction.density_classes import least_ratio_of
from solvers.auction.mechanism.mechanism import PriceRises
from solvers.auction.mechanism.rising_prices import LearnedSteepness, _class_of

DECLARED = PriceRises(7.0, 9.0, 1e12)


def learnt(offers: list[float], award_micros: float, opening_micros: float = 1.0) -> LearnedSteepness:
    """Return a steepness learned from winners with these offers per node-slot, all of the same award."""
    steepness = LearnedSteepness(DECLARED, 144)
    for offer in offers:
        steepness.count_award(offer, award_micros, opening_micros)
    return steepness


@given(st.floats(1, 1e15))
def test_amount_lies_in_its_class(micros: float) -> None:
    place = _class_of(micros)
    assert least_ratio_of(place, 8) <= micros
    assert micros < least_ratio_of(place, 8) * 1.125 + 1


@given(st.lists(st.floats(0, 1e15), min_size=2, max_size=2).map(sorted))
def test_classes_are_in_the_order_of_amounts(amounts: list[float]) -> None:
    assert _class_of(amounts[0]) <= _class_of(amounts[1])


def test_declared_bounds_hold_until_enough_have_won() -> None:
    steepness = LearnedSteepness(DECLARED, 144)
    for _ in range(19):
        steepness.count_award(1_000.0, 500.0, 1.0)
    assert steepness.rises() == DECLARED
    steepness.count_award(1_000.0, 500.0, 1.0)
    assert steepness.rises().alpha != DECLARED.alpha


def test_full_node_slot_costs_most_winners_offers() -> None:
    rises = learnt([100.0] * 20 + [1_024.0] * 80, award_micros=512.0).rises()
    # Taken in ever smaller shares, at a mean b-bar of 512, from a price of 1.
    assert math.e + (math.e - 1) * rises.alpha * 512.0 == pytest.approx(1_024.0)
    assert rises.alpha == rises.beta
    assert rises.max_density_micros == DECLARED.max_density_micros


def test_winners_of_free_slots_change_no_price() -> None:
    assert learnt([1_024.0] * 100, 512.0, opening_micros=0.0).rises() == DECLARED


def test_prices_that_open_high_rise_less_steeply() -> None:
    low = learnt([1_024.0] * 100, 512.0, opening_micros=100.0).rises()
    high = learnt([1_024.0] * 100, 512.0, opening_micros=300.0).rises()
    assert low.alpha > high.alpha
    assert math.e * 300.0 + (math.e - 1) * high.alpha * 512.0 == pytest.approx(1_024.0)


def test_prices_that_open_above_all_offers_still_rise() -> None:
    assert learnt([100.0] * 100, 512.0, opening_micros=5_000.0).rises().alpha == 0.05


def test_absurd_winner_counts_as_highest_density() -> None:
    steepness = LearnedSteepness(PriceRises(1.0, 1.0, 2_048.0), 144)
    steepness.count_award(1e15, 1.0, 0.0)
    assert steepness.state()["offers"] == [(_class_of(2_048.0), 1)]


def test_old_offers_count_less_and_less() -> None:
    steepness = learnt([100.0] * 8, 512.0)
    steepness.advance(143)
    assert dict(steepness.state()["offers"]) == {_class_of(100.0): 8}
    steepness.advance(144)
    assert dict(steepness.state()["offers"]) == {_class_of(100.0): 4}
    steepness.advance(144 * 5)
    assert steepness.state()["offers"] == []


def test_a_restored_one_goes_on_as_the_other() -> None:
    steepness = learnt([100.0] * 30 + [900.0] * 20, 300.0)
    other = LearnedSteepness(DECLARED, 144)
    other.restore(steepness.state())
    for each in (steepness, other):
        each.count_award(5_000.0, 300.0, 0.0)
        each.advance(150)
    assert other.rises() == steepness.rises()
    assert other.state() == steepness.state()


def test_skipped_horizons_fade_like_single_ones() -> None:
    # A cell whose slots began in 1970 passes all of them with its first tick.
    offers = [100.0] * 1_000 + [900.0] * 37 + [5_000.0]
    for horizons in (1, 3, 7, 40):
        at_once, in_turn = learnt(offers, 300.0), learnt(offers, 300.0)
        at_once.advance(144 * horizons + 5)
        for passed in range(1, horizons + 1):
            in_turn.advance(144 * passed)
        assert at_once.state() == in_turn.state()
    at_once.advance(10**12)
    assert at_once.state()["offers"] == []


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e9])
def test_prices_without_bounds_reach_the_top_offers(unit: float) -> None:
    steepness = LearnedSteepness(None, 144)
    assert steepness.rises() == PriceRises(1.0, 1.0)
    for offer in [128.0] * 90 + [1_024.0] * 10:
        steepness.count_award(offer * unit, 512.0 * unit, 0.0)
    rises = steepness.rises()
    assert (math.e - 1) * rises.alpha * 512.0 == pytest.approx(1_024.0, rel=0.13)
    assert rises.max_density_micros == pytest.approx(5_120.0 * unit)


def test_one_absurd_winner_prices_out_no_others() -> None:
    usual, absurd = (LearnedSteepness(None, 144) for _ in range(2))
    for number in range(40):
        usual.count_award(1_024.0, 512.0, 0.0)
        is_absurd = number == 20
        density = min(1e18 if is_absurd else 512.0, absurd.most_density_micros())
        absurd.count_award(1e18 if is_absurd else 1_024.0, density, 0.0)
    assert absurd.rises().alpha <= usual.rises().alpha
    assert absurd.most_density_micros() < 2 * usual.most_density_micros()


@given(
    st.lists(
        st.tuples(st.floats(0, 1e21), st.floats(0, 1e21), st.integers(0, 10**6)), min_size=1, max_size=60
    )
)
def test_any_history_without_bounds_gives_finite_prices(awards: list[tuple[float, float, int]]) -> None:
    steepness, slot = LearnedSteepness(None, 10), 0
    for offer, density, passed in awards:
        slot += passed
        steepness.advance(slot)
        steepness.count_award(offer, min(density, steepness.most_density_micros()), 0.0)
        rises = steepness.rises()
        assert 0 < rises.alpha < math.inf
        assert rises.max_density_micros > 0
