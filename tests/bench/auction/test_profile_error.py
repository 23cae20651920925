"""The error of profiles on short LoRA runs."""

import pytest

from bench.auction.profile_error import KEPT_ASIDE, PROFILED, SHAPES, PredictedStep, measure, result_of
from bench.goals import goals


def job(predicted_s: float, measured_s: float) -> PredictedStep:
    return PredictedStep(SHAPES[0], 4, predicted_s, 0.0, measured_s)


def test_error_is_share_of_measured_step():
    assert job(1.5, 2.0).error_pct == pytest.approx(25.0)
    assert job(2.5, 2.0).error_pct == pytest.approx(25.0)


def test_figures_are_median_and_ninetieth_percentile():
    jobs = [job(1.0 + part / 100, 1.0) for part in range(1, 11)]
    found = {one.name: one for one in result_of(jobs).measurements}
    assert found.keys() <= goals("auction").keys()
    assert found["profile_error_pct"].value == pytest.approx(5.5)
    assert found["profile_error_p90_pct"].value == pytest.approx(9.0)
    assert found["profile_error_pct"].runs == 10


def test_jobs_have_unprofiled_micro_batches():
    assert set(KEPT_ASIDE) - set(PROFILED) == {3, 6, 12}


@pytest.mark.slow
def test_quick_form_predicts_every_job():
    result = measure(quick=True, seed=0)
    assert {one.runs for one in result.measurements} == {2 * len(KEPT_ASIDE)}
    (table,) = result.tables
    assert all(row["measured_s"] > 0 for row in table.rows)
