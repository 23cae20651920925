"""Histories that show nothing: all values equal but for rounding, two points, subnormal or huge numbers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.merging.estimates import MAX_RATIO, MAX_SCORE, EstimateProblem, KindFacts, PairScore, PastMerge
from solvers.auction.posted.demand_curve import DemandCurve
from solvers.merging.errors import GainErrors
from solvers.merging.estimator import estimate
from solvers.merging.loss_curve import LossCurve, fit_loss_curve
from solvers.merging.pairs import Candidate, regress
from tests.support.examples import examples

LOSSES = tuple(1.0 / (0.02 * k + 0.5) + 0.2 for k in range(1, 65))
NOISE = st.sampled_from([0.0, 1e-17, -1e-17, 5e-324, 1e-12])
LEVELS = st.sampled_from([0.0, 0.1, -0.3, 5e-324, 1e-300, -MAX_SCORE, MAX_SCORE])


@st.composite
def nearly_equal(draw: st.DrawFn) -> list[float]:
    """Values that differ by rounding errors alone."""
    level = draw(LEVELS)
    return [min(max(level + noise, -MAX_SCORE), MAX_SCORE) for noise in draw(st.lists(NOISE, min_size=2))]


HISTORIES = st.one_of(
    nearly_equal(),
    st.lists(st.sampled_from([-MAX_SCORE, -1.0, -1e-300, 0.0, 5e-324, 1.0, MAX_SCORE]), max_size=40),
    st.lists(st.floats(-1, 1), max_size=3),
)


def kind(task: str) -> KindFacts:
    return KindFacts(
        task=task,
        dataset_samples=1_000,
        losses=LOSSES,
        iterations_per_epoch=100,
        most_iterations=1_000,
        accuracy_before=0.1,
        target_accuracy=0.8,
        finished_iterations=500.0,
        finished_accuracy=0.8,
    )


def past(number: int, score: float, **changes: object) -> PastMerge:
    fields = {
        "mode": "temporal",
        "donor": f"donor {number % 3}",
        "donor_samples": 1_000,
        "receiver": f"receiver {number % 2}",
        "receiver_samples": 1_000,
        "score": score,
        "gain": 0.01 * (number % 3),
        "target": 0.8,
        "best": 0.85,
        "epochs": 1.0 + number % 4,
        "own_epochs": 3.0,
    }
    return PastMerge.model_validate({**fields, **changes})


def problem(scores: list[float], asked: float = 0.2) -> EstimateProblem:
    return EstimateProblem(
        modes=("temporal", "spatial"),
        kinds=(kind("donor 0"), kind("receiver 0")),
        finished=(),
        scores=tuple(PairScore(donor=a, receiver=b, score=asked * (a - b)) for a in (0, 1) for b in (0, 1)),
        outcomes=tuple(past(number, score) for number, score in enumerate(scores)),
    )


@settings(max_examples=examples(300), deadline=None)
@given(HISTORIES, st.sampled_from([0.0, 1e-17, 0.2, -1.0, MAX_SCORE]))
def test_estimates_of_any_history_are_bounded(scores, asked):
    for transfer in estimate(problem(scores, asked), 1.0).transfers:
        for ratio in (transfer.receiver_ratio, transfer.donor_ratio, transfer.receiver_bound):
            assert ratio is None or 0.02 <= ratio <= MAX_RATIO
        assert abs(transfer.receiver_gain) <= 0.02 + 1e-9, "no further than past gains"


@pytest.mark.parametrize("count", [3, 7, 20, 39])
def test_equal_scores_forecast_as_none(count):
    """The deviation of equal scores of 0.1 is their rounding error, about 1e-17."""
    equal = estimate(problem([0.1] * count), 1.0).transfers
    nearly = estimate(problem([0.1 + 1e-16 * (n % 2) for n in range(count)]), 1.0).transfers
    for one, other in zip(equal, nearly, strict=True):
        assert one.receiver_ratio == pytest.approx(other.receiver_ratio, rel=1e-3)
        assert one.receiver_ratio < 3.0


@settings(max_examples=examples(200), deadline=None)
@given(HISTORIES, st.floats(-MAX_SCORE, MAX_SCORE))
def test_regression_of_any_scores_is_bounded(scores, asked):
    seen = [
        (Candidate("a", f"b{n % 3}", "temporal", 10, 10, score), (-1.0) ** n)
        for n, score in enumerate(scores)
    ]
    (found,) = regress(seen, [Candidate("a", "c", "temporal", 10, 10, asked)])
    assert abs(found.mean) < 100
    assert 0 < found.deviation < 1e4


@settings(max_examples=examples(200), deadline=None)
@given(nearly_equal(), nearly_equal())
def test_equal_gains_have_no_correlation(forecasts, gains):
    errors = GainErrors()
    for forecast, gain in zip(forecasts, gains, strict=False):
        errors.add(forecast, max(gain, -0.9))
    found = errors.figures()
    assert found.pearson_r is None or -1 <= found.pearson_r <= 1
    assert found.mape_pct is not None
    assert math.isfinite(found.mape_pct)
    equal = GainErrors()
    for _ in range(9):
        equal.add(0.1 + 0.2, 0.7)
    assert equal.figures().pearson_r is None


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=40) | nearly_equal())
def test_any_trace_has_a_finite_curve_or_fault(losses):
    found = fit_loss_curve([abs(loss) for loss in losses])
    assert isinstance(found, str) or (isinstance(found, LossCurve) and math.isfinite(found.loss(1_000)))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_sales_taken_back_leave_no_rounding_errors(sales, rng):
    curve = DemandCurve(48)
    for units in sales:
        curve.sell(5.0, units, 4)
    back = sales[:]
    rng.shuffle(back)
    for units in back:
        curve.remove(5.0, units, 4, 0)
        assert curve.mean_sale_units <= 1.001 * max(sales)
        assert curve.mean_window_slots is None or curve.mean_window_slots == pytest.approx(4, rel=1e-3)
    assert curve.sold_units == 0
