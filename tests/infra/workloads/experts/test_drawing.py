"""Jobs that train and serve mixture-of-experts models, as simulations draw them."""

from collections import Counter

import pytest

from infra.workloads.drawing import draw_jobs
from infra.workloads.experts import DEFAULT_JOBS, DEFAULT_SPAN_S
from infra.workloads.timed import WorkloadError
from schemas.experts.workload import ExpertsTerms, MoeServeWorkload, MoeTrainWorkload
from tests.support.moe import moe_cell

CELL = moe_cell(4)


def workloads(seed: int = 1, **options):
    return [timed.event.workload for timed in draw_jobs(CELL, seed, **options)]


def test_jobs_come_within_the_span_in_order():
    jobs = draw_jobs(CELL, 1)
    assert len(jobs) == len({timed.event.job_id for timed in jobs}) == DEFAULT_JOBS
    times_s = [timed.time_s for timed in jobs]
    assert times_s == sorted(times_s)
    assert 0 <= times_s[0] <= times_s[-1] <= DEFAULT_SPAN_S
    assert all(isinstance(timed.event.terms, ExpertsTerms) for timed in jobs)


def test_a_seed_draws_the_same_again():
    assert draw_jobs(CELL, 3) == draw_jobs(CELL, 3)
    assert draw_jobs(CELL, 3) != draw_jobs(CELL, 4)


def test_no_job_is_larger_than_the_zone():
    assert {job.ranks for job in workloads(jobs=100)} == {1, 2, 4, 8}
    small = [timed.event.workload.ranks for timed in draw_jobs(moe_cell(1), 1, jobs=100)]
    assert set(small) == {1, 2}


@pytest.mark.parametrize(("share", "services"), [("0", 0), ("0.25", 100), ("1", 400)])
def test_shares_are_met(share, services):
    found = Counter(map(type, workloads(jobs=400, options={"serving_share": share})))
    assert found[MoeServeWorkload] == pytest.approx(services, abs=25)
    assert found[MoeServeWorkload] + found[MoeTrainWorkload] == 400


def test_invalid_option_is_named():
    with pytest.raises(WorkloadError, match="its options are serving_share, adaptive_share"):
        draw_jobs(CELL, 1, options={"servings": "1"})
