"""Annealed sampling, and the order of a job's data."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.tuner.data import LAST_EXPONENT, Stream, annealing_exponent, draw_sources, shares

sizes = st.lists(st.integers(1, 10**6), min_size=1, max_size=3)


@given(sizes, st.integers(1, 50))
def test_the_exponent_falls_from_one_in_equal_parts(sizes: list[int], epochs: int) -> None:
    exponents = [annealing_exponent(epoch, epochs) for epoch in range(epochs)]
    assert exponents[0] == 1.0
    if epochs > 1:
        assert exponents[-1] == pytest.approx(LAST_EXPONENT)
        falls = [before - after for before, after in pairwise(exponents)]
        assert all(math.isclose(fall, falls[0], abs_tol=1e-9) for fall in falls)
    assert math.isclose(sum(shares(sizes, exponents[-1])), 1.0)


def test_datasets_are_drawn_by_size_then_equally() -> None:
    assert shares([300, 100], 1.0) == [0.75, 0.25]
    assert shares([300, 100], 0.2)[0] == pytest.approx(3**0.2 / (3**0.2 + 1))


def test_sources_follow_probabilities_and_seed() -> None:
    drawn = [source for step in range(500) for source in draw_sources(5, step, 8, [0.7, 0.3])]
    assert drawn.count(1) / len(drawn) == pytest.approx(0.3, abs=0.02)
    assert draw_sources(5, 3, 8, [0.7, 0.3]) == drawn[24:32]
    assert draw_sources(6, 3, 64, [0.5, 0.5]) != draw_sources(5, 3, 64, [0.5, 0.5])


@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 60), st.integers(0, 9))
def test_a_stream_goes_on_from_any_place(records: int, drawn: int, count: int, seed: int) -> None:
    stream = Stream(records, seed)
    assert stream.indices(0, drawn + count)[drawn:] == stream.indices(drawn, count)
    assert sorted(stream.indices(0, records)) == list(range(records))
