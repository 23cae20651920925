"""Eqs. 2 and 4 with errata Y3 and Y4: bisection against linear search, many at once against one by one."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.iterations import (
    all_iterations_to_converge,
    all_spatial_iterations,
    fall,
    iterations_of_epochs,
    iterations_to_converge,
    spatial_iterations,
)
from solvers.merging.loss_curve import LossCurve
from tests.support.examples import examples

MOST = 400
CURVES = st.builds(
    LossCurve,
    st.one_of(st.just(0.0), st.floats(1e-7, 1.0)),
    st.one_of(st.just(0.0), st.floats(1e-5, 2.0)),
    st.floats(0.2, 3.0),
    st.floats(0, 2),
)
GAINS = st.floats(-0.5, 3.0)


def linear_search(curve: LossCurve, most: int, gain: float) -> int:
    return next((k for k in range(1, most) if fall(curve, k, gain) <= 0.001), most)


@settings(max_examples=examples(500), deadline=None)
@given(CURVES, GAINS, st.integers(1, MOST))
def test_bisection_finds_what_linear_search_finds(curve, gain, most):
    assert iterations_to_converge(curve, most, gain) == linear_search(curve, most, gain)


@settings(max_examples=examples(200), deadline=None)
@given(CURVES, GAINS, st.integers(1, 1_000))
def test_fall_is_difference_of_transferred_losses(curve, gain, k):
    difference = (curve.loss(k) - curve.loss(k + 1)) / (1 + gain)
    assert fall(curve, k, gain) == pytest.approx(difference, rel=1e-6, abs=1e-14)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(CURVES, GAINS, st.integers(1, 100_000)), min_size=1, max_size=8))
def test_batch_result_equals_single_ones(jobs):
    found = all_iterations_to_converge(
        [(c.quadratic, c.linear, c.constant, c.floor) for c, _, _ in jobs],
        [most for _, _, most in jobs],
        [gain for _, gain, _ in jobs],
    )
    assert found.tolist() == [iterations_to_converge(c, most, gain) for c, gain, most in jobs]


def test_all_pairs_are_one_call():
    curves = [LossCurve(0.0, b2, 0.5, 0.1) for b2 in (0.01, 0.1, 0.5)]
    gains = np.array([[0.0, 0.2, -0.1], [0.4, 0.0, 0.0], [0.1, 0.3, 0.0]])
    found = all_iterations_to_converge(
        np.array([[(c.quadratic, c.linear, c.constant, c.floor) for c in curves]]), 10_000, gains
    )
    assert found.shape == (3, 3)
    for donor in range(3):
        for receiver in range(3):
            one = iterations_to_converge(curves[receiver], 10_000, gains[donor, receiver])
            assert found[donor, receiver] == one


def test_erratum_y4_first_small_fall_counts():
    # L(k) = 1/k falls by 1/(k (k + 1)): 1/(31 * 32) > 0.001 >= 1/(32 * 33).
    assert iterations_to_converge(LossCurve(0, 1, 0, 0), 10_000) == 32


@settings(max_examples=examples(200), deadline=None)
@given(CURVES, st.floats(0, 2), st.floats(0, 2))
def test_a_higher_gain_never_needs_more_iterations(curve, gain, more):
    assert iterations_to_converge(curve, 10_000, gain + more) <= iterations_to_converge(curve, 10_000, gain)


def test_curve_may_start_concave():
    # Its falls rise until k = 33 and then shrink: the first is small, though the loss still falls.
    shoulder = LossCurve(1e-3, 0.0, 3.0, 0.0)
    falls = [fall(shoulder, k) for k in range(1, 100)]
    assert falls[0] < max(falls)
    assert iterations_to_converge(shoulder, 10_000) == linear_search(shoulder, 10_000, 0.0) == 1


@settings(max_examples=examples(300), deadline=None)
@given(
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
    st.tuples(st.integers(1, 4_096), st.integers(1, 4_096)),
    st.tuples(st.integers(1, 10**7), st.integers(1, 10**7)),
)
def test_erratum_y3_rounds_spatial_iterations_up(iterations, batches, samples):
    (k_a, k_b), (m_a, m_b), (d_a, d_b) = iterations, batches, samples
    epochs = max(Fraction(k_a * m_a, d_a), Fraction(k_b * m_b, d_b))
    exact = math.ceil(epochs * (d_a + d_b) / (m_a + m_b))
    assert abs(spatial_iterations(iterations, batches, samples) - exact) <= exact * 1e-11
    assert spatial_iterations(iterations, batches, samples) == spatial_iterations(
        iterations[::-1], batches[::-1], samples[::-1]
    )


def test_equal_spatial_jobs_need_equal_steps():
    assert spatial_iterations((100, 100), (8, 8), (999, 999)) == 100


def test_spatial_pairs_at_once():
    found = all_spatial_iterations(
        (np.array([10, 20]), np.array([30, 5])), (np.array([8, 8]), 16), (np.array([1_000, 2_000]), 500)
    )
    assert found.tolist() == [
        spatial_iterations((10, 30), (8, 16), (1_000, 500)),
        spatial_iterations((20, 5), (8, 16), (2_000, 500)),
    ]


def test_epoch_ends_with_partial_step():
    assert iterations_of_epochs(3, 64, 100) == 6
    assert iterations_of_epochs(0.5, 64, 100) == 1
    assert iterations_of_epochs(0, 64, 100) == 1


@pytest.mark.parametrize(
    ("most", "gain", "threshold"), [(0, 0, 0.001), (1, -1, 0.001), (1, math.nan, 0.001), (1, 0, 0)]
)
def test_arguments_outside_their_range_are_refused(most, gain, threshold):
    with pytest.raises(ValueError, match="above -1"):
        iterations_to_converge(LossCurve(0, 1, 1, 0), most, gain, threshold)


@pytest.mark.parametrize(
    ("coefficients", "most", "gains"),
    [
        ([(0, 1, 1)], 1, 0),
        ([(0, -1, 1, 0)], 1, 0),
        ([(0, 1, 1, 0)], 0, 0),
        ([(0, 1, 1, 0)], 1, -1),
        (1.0, 1, 0),
    ],
)
def test_arrays_outside_their_range_are_refused(coefficients, most, gains):
    with pytest.raises(ValueError, match="coefficients"):
        all_iterations_to_converge(coefficients, most, gains)


@pytest.mark.parametrize(("batches", "samples"), [((0, 8), (1, 1)), ((8, 8), (0, 1))])
def test_empty_batches_and_data_are_refused(batches, samples):
    with pytest.raises(ValueError, match="above zero"):
        spatial_iterations((1, 1), batches, samples)
