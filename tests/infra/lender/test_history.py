"""Reports at any times become loads on a grid; what is missing stays unknown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.lender.history import LONGEST_BRIDGED_INTERVALS, LoadHistory
from tests.infra.lender.loads import INTERVAL_S, START_S, history


def means(past: LoadHistory) -> list[float | None]:
    return [past.mean(index) for index in range(past.first, past.last + 1)]


def test_interval_has_mean_and_peak_of_reports():
    past = LoadHistory(INTERVAL_S, 10)
    for offset_s, load in ((10.0, 0.2), (100.0, 0.6), (299.0, 0.4), (301.0, 0.5)):
        assert past.add(START_S + offset_s, load)
    assert means(past) == pytest.approx([0.4, 0.5])
    assert past.peak(past.last - 1) == 0.6


def test_an_earlier_report_changes_nothing():
    past = history([0.5])
    assert not past.add(START_S - 0.001, 0.9)
    assert not past.add(START_S - 1_000.0, 0.9)
    assert means(past) == [0.5]


def test_reports_of_the_same_time_all_count():
    past = history([0.5])
    assert past.add(START_S, 0.9)
    assert means(past) == pytest.approx([0.7])


def test_a_short_gap_is_bridged_evenly():
    assert means(history([0.2, None, None, 0.5])) == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_a_long_gap_stays_unknown():
    past = history([0.2, *[None] * (LONGEST_BRIDGED_INTERVALS + 1), 0.5])
    assert means(past) == [0.2, None, None, None, None, 0.5]
    assert past.peak(past.last - 1) is None


def test_long_gap_drops_earlier_history():
    past = history([0.2, *[None] * 50, 0.5], kept_intervals=20)
    assert means(past) == [0.5]


def test_the_oldest_intervals_are_forgotten():
    past = history([index / 100 for index in range(30)], kept_intervals=10)
    assert means(past) == [index / 100 for index in range(20, 30)]


def test_past_of_history_ends_at_requested_interval():
    past = history([0.1, 0.2, 0.3])
    assert means(past.up_to(past.last - 1)) == [0.1, 0.2]
    assert means(past) == [0.1, 0.2, 0.3]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3_000.0), st.floats(0.0, 1.0)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 8),
)
def test_grid_is_complete_with_reported_loads_only(steps, kept):
    past = LoadHistory(INTERVAL_S, kept)
    time_s = START_S
    for step_s, load in steps:
        time_s += step_s
        past.add(time_s, load)
    assert past.last == math.floor(past.latest_s / INTERVAL_S)
    assert past.mean(past.last) is not None
    assert len(means(past)) <= kept
    known = [load for load in means(past) if load is not None]
    least, most = min(load for _, load in steps), max(load for _, load in steps)
    assert all(least - 1e-12 <= load <= most + 1e-12 for load in known)
