"""The margin is a quantile of what loads have exceeded plans by."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.lender.history import LoadHistory, Margin
from tests.infra.lender.loads import INTERVAL_S, START_S


def evaluated(margin: Margin, loads: list[float | None], planned: float, ahead: int = 1) -> Margin:
    """Plan for the same load in each interval, and let the intervals bring these."""
    past = LoadHistory(INTERVAL_S)
    for index, load in enumerate(loads):
        if load is not None:
            past.add(START_S + index * INTERVAL_S, load)
            margin.add_plan(past, ahead, planned)
    return margin


def test_margin_needs_evaluated_plans():
    assert Margin(0.99, 100).load == 0.0
    assert evaluated(Margin(0.99, 100), [0.5, 0.9], 0.5).load == 0.0


def test_plan_is_evaluated_by_highest_load_afterwards():
    loads = [0.5, 0.6, 0.8, 0.5, 0.5]
    assert evaluated(Margin(1.0, 100), loads[:4], 0.5, ahead=2).load == pytest.approx(0.3)
    assert evaluated(Margin(1.0, 100), loads[:3], 0.5, ahead=2).load == 0.0


def test_loads_below_plans_leave_no_margin():
    assert evaluated(Margin(1.0, 100), [0.1] * 20, 0.5).load == 0.0


def test_plan_of_partly_unknown_time_is_not_evaluated():
    gap = [None] * 5
    assert evaluated(Margin(1.0, 100), [0.5, *gap, 0.9, 0.5, 0.5], 0.5, ahead=2).load == pytest.approx(0.0)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=60),
    st.floats(0.0, 1.0),
    st.integers(1, 20),
)
def test_it_is_the_quantile_of_the_last_excesses(loads, quantile, kept):
    # Of a plan for one interval, made in each: evaluated when the interval after it is over.
    excesses = [load - 0.3 for load in loads[1:-1]][-kept:]
    place = min(max(math.ceil(quantile * (len(excesses) + 1)), 1), len(excesses))
    assert evaluated(Margin(quantile, kept), list(loads), 0.3).load == max(sorted(excesses)[place - 1], 0.0)
