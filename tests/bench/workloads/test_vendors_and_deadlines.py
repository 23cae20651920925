"""Prices of drawn vendors, and deadlines of drawn users."""

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.paper import DEADLINE_RULES
from bench.workloads.tasks import draw_quotes, mean_price_units

QUOTES = draw_quotes("c", 4_000, seed=2)
THOUSANDS = 12.5
PRICES = [q.fixed_price_micros + q.price_per_thousand_samples_micros * THOUSANDS for q in QUOTES]
DELAYS = [q.fixed_delay_s + q.delay_per_thousand_samples_s * THOUSANDS for q in QUOTES]


def test_dearest_vendor_asks_five_times_cheapest():
    assert max(PRICES) / min(PRICES) == pytest.approx(5.0, rel=0.01)
    assert fmean(PRICES) / 1e6 == pytest.approx(mean_price_units(12_500), rel=0.03)


@pytest.mark.parametrize("samples", [5_000, 20_000])
def test_mean_price_matches_distribution(samples):
    mean = fmean(q.fixed_price_micros + q.price_per_thousand_samples_micros * samples / 1_000 for q in QUOTES)
    assert mean / 1e6 == pytest.approx(mean_price_units(samples), rel=0.03)


def test_delays_last_two_to_six_slots():
    assert {math.ceil(delay / 600) for delay in DELAYS} == {2, 3, 4, 5, 6}


def test_faster_vendor_tends_to_be_dearer():
    pairs = list(zip(PRICES, DELAYS, strict=True))
    better = [
        dear > cheap
        for (dear, fast), (cheap, slow) in zip(pairs[::2], pairs[1::2], strict=True)
        if fast < slow
    ]
    assert 0.7 < fmean(better) < 0.95


@pytest.mark.parametrize("rule", DEADLINE_RULES.values(), ids=DEADLINE_RULES.keys())
@given(st.floats(0, 1), st.integers(1, 144), st.integers(-5, 144))
def test_every_rule_allows_for_the_work_itself(rule, haste, work_slots, left_slots):
    assert rule(haste, work_slots, left_slots) >= work_slots


@given(st.floats(0, 1), st.integers(1, 144))
def test_tight_is_sooner_than_proportional_and_loose_later(haste, work_slots):
    tight, proportional, loose = (
        DEADLINE_RULES[name](haste, work_slots, 144) for name in ("tight", "proportional", "loose")
    )
    assert tight < proportional < loose


@given(st.floats(0, 1), st.integers(1, 100), st.integers(100, 144))
def test_a_day_is_never_left(haste, work_slots, left_slots):
    assert DEADLINE_RULES["day"](haste, work_slots, left_slots) <= left_slots
