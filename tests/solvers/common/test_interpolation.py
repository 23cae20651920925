"""Interpolation of measured steps, and its error, also of degenerate measurements."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.common.interpolation import interpolated

SIZES = st.integers(1, 4_096)
STEPS = st.dictionaries(SIZES, st.floats(1e-6, 86_400), min_size=2, max_size=12)


def test_line_is_continued_and_followed():
    line = {1: 1.5, 4: 3.0, 16: 9.0}
    for size in (1, 2, 3, 8, 12, 16, 64):
        found = interpolated(line, size)
        assert found is not None
        assert found.value == pytest.approx(1.0 + size / 2)
    assert interpolated(line, 8).relative_error == pytest.approx(0.0)


def test_error_is_that_of_left_out_measurement():
    # The middle point is predicted as 3 from its neighbours.
    assert interpolated({1: 1.0, 2: 2.0, 5: 9.0}, 3).relative_error == pytest.approx(0.5)


def test_one_measurement_predicts_no_other():
    assert interpolated({4: 1.0}, 8) is None
    assert interpolated({}, 8) is None
    assert interpolated({4: 1.0}, 4) == (1.0, 0.0)


def test_error_of_two_measurements_is_unknown():
    assert interpolated({1: 1.0, 4: 2.0}, 2).relative_error == 1.0


@given(STEPS, SIZES)
def test_value_is_finite_and_bounded(measured, at):
    found = interpolated(measured, at)
    assert found is not None
    assert math.isfinite(found.relative_error)
    assert found.relative_error >= 0
    least, most = min(measured.values()), max(measured.values())
    if min(measured) <= at <= max(measured):
        assert least * (1 - 1e-9) <= found.value <= most * (1 + 1e-9)
    # Beyond the measurements, a step is at most as much longer, or shorter, as it is larger.
    factor = max(at / max(measured), min(measured) / at, 1.0)
    assert least / factor * (1 - 1e-9) <= found.value <= most * factor * (1 + 1e-9)


@given(STEPS, SIZES)
def test_measured_size_is_returned_as_measured(measured, at):
    measured[at] = 2.0
    assert interpolated(measured, at) == (2.0, 0.0)


@given(st.dictionaries(SIZES, st.just(1.25), min_size=3, max_size=12), SIZES)
def test_equal_measurements_predict_the_same(measured, at):
    found = interpolated(measured, at)
    assert found is not None
    if at > min(measured):
        assert found.value == pytest.approx(1.25)
    assert found.relative_error == pytest.approx(0.0)
