"""Batches divided by speed: no division ends earlier."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.elastic.batch_shares import batch_shares, step_time, with_each

costs = st.floats(1e-6, 1e6) | st.sampled_from([1.0, 3.0])


@given(st.integers(0, 9), st.lists(costs, min_size=1, max_size=3))
def test_no_division_ends_earlier(sequences: int, costs: list[float]) -> None:
    counts = batch_shares(sequences, costs)
    divisions = [
        division
        for division in product(range(sequences + 1), repeat=len(costs))
        if sum(division) == sequences
    ]
    assert sum(counts) == sequences
    assert min(counts) >= 0
    assert step_time(counts, costs) == pytest.approx(min(step_time(each, costs) for each in divisions))


@given(st.integers(1, 10_000), st.lists(costs, min_size=1, max_size=20), costs)
def test_another_worker_never_slows_a_step(sequences: int, costs: list[float], joining: float) -> None:
    without = step_time(batch_shares(sequences, costs), costs)
    joined = [*costs, joining]
    assert step_time(batch_shares(sequences, joined), joined) <= without * (1 + 1e-12)


@given(st.integers(0, 1_000), st.integers(1, 50), st.floats(1e-9, 1e9))
def test_equal_workers_get_nearly_equal_shares(sequences: int, workers: int, cost: float) -> None:
    counts = batch_shares(sequences, [cost] * workers)
    assert sum(counts) == sequences
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("costs", "counts"),
    [
        ((1.0, 1.0, 3.0, 3.0, 3.0), [12, 12, 4, 4, 4]),  # erratum L4: three T4 are one V100
        ((1.0, 100.0), [36, 0]),
        ((2.0, 1.0), [12, 24]),
    ],
)
def test_shares_are_in_proportion_to_speeds(costs: tuple[float, ...], counts: list[int]) -> None:
    assert batch_shares(36, costs) == counts


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_each_worker_gets_one_if_there_are_enough(counts: list[int]) -> None:
    shares = with_each(counts)
    assert sum(shares) == sum(counts)
    assert sum(each == 0 for each in shares) == max(0, len(counts) - sum(counts))
