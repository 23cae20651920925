"""Running errors against the same figures computed at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.merging.errors import GainErrors, IterationErrors
from tests.support.examples import examples

GAIN = st.floats(-0.9, 3)
PAIRS = st.lists(st.tuples(GAIN, GAIN), min_size=1, max_size=30)


def gain_errors(pairs) -> GainErrors:
    errors = GainErrors()
    for forecast, real in pairs:
        errors.add(forecast, real)
    return errors


@settings(max_examples=examples(200), deadline=None)
@given(PAIRS)
def test_gains_by_their_definitions(pairs):
    forecast, real = np.array(pairs).T
    figures = gain_errors(pairs).figures()
    assert figures.pairs == len(pairs)
    assert figures.mape_pct == pytest.approx(100 * np.mean(np.abs(forecast - real) / (1 + real)))
    assert figures.sign_pct == pytest.approx(100 * np.mean((forecast >= 0) == (real >= 0)))
    if np.abs(real).sum() > 0:
        expected = 100 * np.abs(forecast - real).sum() / np.abs(real).sum()
        assert figures.gain_error_pct == pytest.approx(expected)
    if forecast.std() > 1e-3 and real.std() > 1e-3:
        assert figures.pearson_r == pytest.approx(np.corrcoef(forecast, real)[0, 1], abs=1e-9)


def test_without_differences_there_is_no_correlation():
    assert gain_errors([(0.1, 0.2)]).figures().pearson_r is None
    assert gain_errors([(0.1, 0.2), (0.1, 0.3)]).figures().pearson_r is None
    assert GainErrors().figures() == (0, None, None, None, None)
    assert gain_errors([(0.1, 0.0)]).figures().gain_error_pct is None


def test_zero_gain_counts_as_positive():
    assert gain_errors([(0.0, 0.0), (0.1, 0.0), (-0.1, 0.0)]).figures().sign_pct == pytest.approx(200 / 3)


def test_iterations_have_a_mean_and_a_worst_error():
    errors = IterationErrors()
    assert errors.figures() == (0, None, None)
    for forecast, real in ((110, 100), (50, 100), (7, 7)):
        errors.add(forecast, real)
    figures = errors.figures()
    assert figures.jobs == 3
    assert (figures.mean_ape_pct, figures.max_ape_pct) == (pytest.approx(20), pytest.approx(50))


@pytest.mark.parametrize(("forecast", "real"), [(math.nan, 0.1), (0.1, math.inf), (0.1, -1)])
def test_impossible_gains_are_refused(forecast, real):
    with pytest.raises(ValueError, match="above -1"):
        GainErrors().add(forecast, real)


@pytest.mark.parametrize(("forecast", "real"), [(math.nan, 1), (-1, 1), (1, 0), (1, math.inf)])
def test_impossible_iterations_are_refused(forecast, real):
    with pytest.raises(ValueError, match="finite"):
        IterationErrors().add(forecast, real)
