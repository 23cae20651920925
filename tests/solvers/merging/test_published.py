"""The printed estimator: Eqs. 1 to 4, by brute force, and its line of gains."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.merging.estimates import MAX_RATIO, EstimateProblem
from solvers.merging.estimator import estimate, smallest
from solvers.merging.loss_curve import LossCurve
from solvers.merging.pairs import Candidate, GainOutcome
from solvers.merging.published import (
    THRESHOLD,
    gain_line,
    iterations_to_converge,
)
from tests.support.examples import examples

COEFFICIENTS = st.floats(0, 10) | st.sampled_from([0.0, 5e-324, 1e-12, 1e150])


def outcomes(*points: tuple[float, float], mode="temporal") -> list[GainOutcome]:
    return [GainOutcome(Candidate("a", "b", mode, 10, 10, score), gain) for score, gain in points]


def published(**changes: object) -> EstimateProblem:
    return smallest().model_copy(update={"estimator": "published", **changes})


@settings(max_examples=examples(300), deadline=None)
@given(st.tuples(COEFFICIENTS, COEFFICIENTS, COEFFICIENTS), st.integers(1, 300), st.floats(-0.9, 3))
def test_first_flat_decrement_is_found(coefficients, most, gain):
    if sum(coefficients) == 0:
        return
    curve = LossCurve(*coefficients, 0.1)
    found = iterations_to_converge(curve, most, gain)
    assert 1 <= found <= most
    if max(coefficients) <= 10 and min(c for c in coefficients if c) > 1e-3:
        losses = [curve.loss(k) / (1 + gain) for k in range(1, most + 2)]
        flat = (k for k in range(1, most) if losses[k - 1] - losses[k] <= THRESHOLD)
        assert found == pytest.approx(next(flat, most), abs=1)


def test_line_is_least_squares():
    points = [(0.1, 0.02), (0.3, 0.01), (0.5, 0.06), (0.9, 0.05)]
    slope, height = np.polyfit(*zip(*points, strict=True), 1)
    line = gain_line([*outcomes(*points), *outcomes((0.1, 9.0), mode="spatial")], "temporal")
    for score in (0.2, 0.4, 0.7):
        assert line.at(score) == pytest.approx(slope * score + height)
    assert (line.at(-5.0), line.at(5.0)) == (0.01, 0.06)
    assert line.at(None) == pytest.approx(0.035)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.1 + 1e-17, 0.1 + 3e-6, 0.3, 5e-324, 1.0]), st.floats(-0.1, 0.1)),
        min_size=1,
        max_size=20,
    ),
    st.floats(-1, 1) | st.sampled_from([-100.0, 100.0]),
)
def test_forecasts_stay_within_observed_gains(points, score):
    gains = [gain for _, gain in points]
    assert min(gains) <= gain_line(outcomes(*points), "temporal").at(score) <= max(gains)


@pytest.mark.parametrize(
    "points",
    [
        [(0.5, 0.002), (0.500003, -0.004)],
        [(0.5, 0.002), (0.500003, -0.004), (0.500006, 0.006)],
        [(0.2, 0.01), (0.8, -0.01)],
    ],
    ids=["two close scores", "three close scores", "two scores"],
)
def test_too_little_evidence_has_no_slope(points):
    line = gain_line(outcomes(*points), "temporal")
    mean = sum(gain for _, gain in points) / len(points)
    assert line.at(0.1) == line.at(0.9) == pytest.approx(mean)


def test_equal_scores_give_their_mean():
    assert gain_line(outcomes(*[(0.1, gain) for gain in (0.1, 0.2, 0.3)]), "temporal").at(-50.0) == (
        pytest.approx(0.2)
    )
    assert gain_line([], "spatial").at(0.3) == 0.0


def test_estimates_are_by_equations_alone():
    problem = published()
    told = estimate(problem, 1.0)
    curves = [kind.losses for kind in problem.kinds]
    assert len(curves) == len(told.kinds)
    assert told.kinds[0].iterations != 300, "its finished jobs do not count"
    learned = estimate(problem.model_copy(update={"estimator": "learned"}), 1.0)
    assert learned.kinds[0].iterations == 300
    for transfer in told.transfers:
        assert transfer.receiver_bound is None
        assert 0 < transfer.receiver_ratio <= MAX_RATIO


def test_gain_shortens_receivers():
    problem = published()
    (past,) = problem.outcomes
    helped, harmed = (
        estimate(
            problem.model_copy(update={"outcomes": (past.model_copy(update={"gain": gain}),)}), 1.0
        ).transfers
        for gain in (1.0, -0.5)
    )
    better, worse = (
        next(one for one in some if (one.mode, one.donor, one.receiver) == ("temporal", 0, 1))
        for some in (helped, harmed)
    )
    assert better.receiver_gain == pytest.approx(1.0)
    assert better.receiver_ratio < 1 < worse.receiver_ratio
    assert math.isfinite(worse.receiver_ratio)
