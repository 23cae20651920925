"""Fits of Eq. 3: curves are recovered from their own values, and traces without one are reported as such."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.views.sentences import sentence_of
from solvers.merging.loss_curve import FEWEST_LOSSES, LossCurve, fit_loss_curve
from tests.support.examples import examples

# Measured on the small default model, a batch of eight each.
TABLES = (
    *(6.085, 6.067, 6.542, 6.011, 5.815, 5.727, 5.666, 5.64),
    *(5.717, 5.643, 5.46, 5.369, 5.577, 5.514, 5.447, 5.447),
)
"""Characters of languages that the model has never seen."""
PROSE = (
    *(5.985, 5.848, 6.155, 5.847, 5.794, 5.789, 5.584, 5.818),
    *(5.721, 5.642, 5.626, 5.667, 5.626, 5.607, 5.643, 5.565),
)
PROGRAMS = (
    *(5.34, 5.25, 5.48, 5.52, 5.42, 5.44, 5.6, 5.17),
    *(5.37, 5.55, 5.57, 5.27, 5.42, 5.29, 5.33, 5.32),
    *(5.39, 5.4, 5.19, 5.33, 5.42, 5.6, 5.51, 5.37),
    *(5.29, 5.44, 5.39, 5.38, 5.33, 5.34, 5.45, 5.23),
)
"""Text that the model was trained on: its mean loss hardly falls in twice as many iterations."""


def trace_of(curve: LossCurve, iterations: int = 64, noise: float = 0.0, seed: int = 0) -> list[float]:
    random = np.random.default_rng(seed)
    return [curve.loss(k) + noise * random.standard_normal() for k in range(1, iterations + 1)]


def fitted(losses: list[float]) -> LossCurve:
    fit = fit_loss_curve(losses)
    assert isinstance(fit, LossCurve), fit
    return fit


@settings(max_examples=examples(150), deadline=None)
@given(
    st.floats(0, 0.01),
    st.floats(0.001, 0.5),
    st.floats(0.3, 3),
    st.floats(0, 5),
)
def test_a_curve_comes_back_from_its_own_values(quadratic, linear, constant, floor):
    curve = LossCurve(quadratic, linear, constant, floor)
    fit = fitted(trace_of(curve))
    for iteration in (1, 8, 32, 64):
        assert fit.loss(iteration) == pytest.approx(curve.loss(iteration) / curve.loss(1), abs=1e-3)


def test_loss_is_normalised_to_largest():
    losses = trace_of(LossCurve(0.001, 0.05, 0.5, 0.8))
    small, large = fitted(losses), fitted([1_000 * loss for loss in losses])
    assert small.loss(1) == pytest.approx(1.0, abs=1e-3)
    for iteration in (1, 30, 100):
        assert small.loss(iteration) == pytest.approx(large.loss(iteration), abs=1e-4)


def test_second_order_term_fits_more():
    # Nearly flat, then steep: the reason that the paper gives for the term that Optimus lacks.
    curve = LossCurve(0.002, 0.0, 1.0, 0.1)
    fit = fitted(trace_of(curve))
    for iteration in (1, 16, 64):
        assert fit.loss(iteration) == pytest.approx(curve.loss(iteration) / curve.loss(1), abs=1e-3)
    assert fit.quadratic > 0


def test_single_outliers_hardly_move_the_fit():
    curve = LossCurve(0.0, 0.05, 0.5, 0.3)
    clean = trace_of(curve)
    spoilt = [*clean]
    spoilt[30] = spoilt[45] = clean[0]
    assert fitted(spoilt).loss(64) == pytest.approx(fitted(clean).loss(64), abs=0.02)


def test_losses_of_single_batches_may_scatter():
    curve = LossCurve(0.0005, 0.04, 0.5, 0.4)
    fit = fitted(trace_of(curve, noise=0.05))
    largest = max(trace_of(curve, noise=0.05))
    assert fit.loss(64) * largest == pytest.approx(curve.loss(64), abs=0.08)


@pytest.mark.parametrize(
    ("losses", "case"),
    [
        ([2.0, 1.0, 0.5], "too_few_losses"),
        ([], "too_few_losses"),
        ([3.0, 2.0, math.nan, *[1.0] * 10], "loss_not_finite"),
        ([3.0, 2.0, math.inf, *[1.0] * 10], "loss_not_finite"),
        ([3.0, 2.0, -0.1, *[1.0] * 10], "loss_negative"),
        ([0.0] * 20, "losses_all_zero"),
        ([1.0] * 20, "losses_scatter"),
        ([1.0 + 0.01 * k for k in range(20)], "losses_scatter"),
        (list(1.0 + 0.1 * np.random.default_rng(7).standard_normal(64)), "losses_scatter"),
    ],
)
def test_trace_without_curve_has_reason(losses, case):
    fit = fit_loss_curve(losses)
    assert fit == case
    assert sentence_of("unusable_profile", {"case": case}) != case


@pytest.mark.parametrize(
    ("losses", "falls"),
    [(TABLES, True), (PROSE, True), (PROGRAMS, False)],
    ids=["tables", "prose", "programs"],
)
def test_measured_losses_of_small_model_have_curve(losses, falls):
    assert isinstance(fit_loss_curve(losses), LossCurve) == falls
    # A shorter profile run has the same result.
    assert isinstance(fit_loss_curve(losses[:16]), LossCurve) == falls


def test_the_fewest_losses_are_enough():
    fitted([1 / k for k in range(1, FEWEST_LOSSES + 1)])


@pytest.mark.parametrize("bad", [(-0.1, 1, 1, 0), (0, 0, 0, 1), (0, math.nan, 1, 0), (0, 1, 1, math.inf)])
def test_coefficients_are_finite_and_not_negative(bad):
    with pytest.raises(ValueError, match="loss"):
        LossCurve(*bad)
