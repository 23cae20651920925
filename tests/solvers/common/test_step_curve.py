"""Curves of step times over GPUs: the best fit, its error, and degenerate measurements."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.common.step_curve import (
    ONE_POINT_ERROR,
    TWO_POINT_ERROR,
    StepPoint,
    fit_curve,
    line,
)

TIMES = st.one_of(st.just(0.0), st.floats(1e-6, 1e5))
POINTS = st.lists(
    st.builds(
        StepPoint,
        gpus=st.integers(1, 1_024).map(float),
        micro_batch=st.integers(1, 4_096).map(float),
        pass_s=TIMES,
        exchange_s=TIMES,
    ),
    min_size=1,
    max_size=12,
)


def step(gpus: int, micro_batch: int = 8) -> StepPoint:
    """A step of 10 ms and 5 ms a sequence, with exchanges of 8 ms and 2 ms for each further GPU."""
    exchange_s = 0.008 + 0.002 * (gpus - 1) if gpus > 1 else 0.0
    return StepPoint(float(gpus), float(micro_batch), 0.01 + 0.005 * micro_batch, exchange_s)


def test_curve_returns_to_steps_of_its_form() -> None:
    curve = fit_curve([step(1), step(2), step(4, 4), step(8, 16)])
    for gpus, micro_batch in product((1, 2, 3, 16), (2, 8, 32)):
        expected = step(gpus, micro_batch)
        predicted_s = curve.step_s(gpus, gpus * micro_batch, micro_batch)
        assert predicted_s == pytest.approx(expected.pass_s + expected.exchange_s, rel=1e-6)


def test_accumulated_passes_add_up() -> None:
    curve = fit_curve([step(1), step(1, 4), step(2)])
    assert curve.step_s(2, 64, 8) == pytest.approx(4 * step(2).pass_s + step(2).exchange_s, rel=1e-6)


def test_few_points_state_assumed_errors() -> None:
    assert fit_curve([step(1)]).relative_error == ONE_POINT_ERROR
    assert fit_curve([step(1), step(2)]).relative_error == TWO_POINT_ERROR
    assert fit_curve([step(1), step(2), step(4)]).relative_error < TWO_POINT_ERROR


def test_error_grows_with_noise() -> None:
    noisy = [
        step(gpus)._replace(pass_s=step(gpus).pass_s * factor)
        for gpus, factor in ((1, 1.0), (2, 1.5), (4, 0.7), (8, 1.3))
    ]
    assert fit_curve(noisy).relative_error > fit_curve([step(1), step(2), step(4), step(8)]).relative_error


def test_many_points_count_evenly() -> None:
    many = [step(gpus, micro_batch) for gpus in range(1, 65) for micro_batch in (2, 4, 8, 16)]
    curve = fit_curve(many)
    assert curve.step_s(128, 1_024, 8) == pytest.approx(step(128).pass_s + step(128).exchange_s, rel=1e-6)


def test_one_point_counts_as_proportional() -> None:
    curve = fit_curve([step(1)])
    assert curve.step_s(1, 16, 8) == pytest.approx(2 * step(1).pass_s)
    assert curve.step_s(4, 32, 8) == pytest.approx(step(1).pass_s)
    assert curve.only_gpus == 1


@given(POINTS, st.integers(1, 1_024), st.integers(1, 2**20), st.integers(1, 4_096))
def test_any_points_give_finite_positive_steps(
    points: list[StepPoint], gpus: int, batch: int, micro_batch: int
) -> None:
    curve = fit_curve(points)
    step_s = curve.step_s(gpus, batch, micro_batch)
    assert math.isfinite(step_s)
    assert step_s > 0
    assert min(curve[:4]) >= 0
    assert 0 < curve.relative_error <= 1


@given(st.floats(1e-5, 1e4), st.floats(0, 1e-12), st.integers(2, 12))
def test_rounding_noise_shows_no_scaling(pass_s: float, noise: float, count: int) -> None:
    points = [StepPoint(4.0, 8.0, pass_s * (1 + noise * number), 0.0) for number in range(count)]
    assert fit_curve(points).step_s(4, 64, 16) == pytest.approx(2 * pass_s, rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 64).map(float), st.floats(1e-3, 1e3)), min_size=2, max_size=8))
def test_no_line_of_a_grid_is_better(points: list[tuple[float, float]]) -> None:
    def fault(fixed: float, slope: float) -> float:
        most = max(y for _, y in points)
        weights = [1 / max(y / most, 1e-3) ** 2 for _, y in points]
        return math.fsum(
            weight * ((fixed + slope * x - y) / most) ** 2
            for weight, (x, y) in zip(weights, points, strict=True)
        )

    fixed, slope = line(points, fixed_part=0.5)
    best = fault(fixed, slope)
    factors = (0.0, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0)
    scale = max(y for _, y in points)
    for a, b in product(factors, factors):
        assert best <= fault(a * fixed, b * slope) * (1 + 1e-6) + 1e-9
        assert best <= fault(a * scale, b * slope) * (1 + 1e-6) + 1e-9
        assert best <= fault(a * fixed, b * scale / 64) * (1 + 1e-6) + 1e-9
