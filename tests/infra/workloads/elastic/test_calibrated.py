import math
from collections import Counter
from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest

from infra.workloads.elastic.calibrated import DAYS, JOBS, TRAINING_GPUS, generate_requests
from infra.workloads.elastic.requests import DAY_S, HOUR_S, JobRequest, window
from infra.workloads.timed import WorkloadError
from tests.infra.workloads.elastic.baseline import BaselineRun, run_baseline

SEEDS = (0, 1, 7)
SPAN_S = DAYS * DAY_S


@pytest.fixture(scope="module", params=SEEDS)
def requests(request) -> list[JobRequest]:
    return generate_requests(request.param)


@pytest.fixture(scope="module")
def default_run() -> BaselineRun:
    return run_baseline(generate_requests(0), TRAINING_GPUS // 8, SPAN_S)


def gpu_s(requests: list[JobRequest]) -> float:
    return math.fsum(request.gpu_s for request in requests)


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(part * len(values))]


def test_the_same_seed_draws_the_same_requests():
    assert generate_requests(3, days=0.5) == generate_requests(3, days=0.5)
    assert generate_requests(3, days=0.5) != generate_requests(4, days=0.5)


def test_jobs_come_in_order_within_the_days(requests):
    assert len(requests) == JOBS
    offsets = [request.offset_s for request in requests]
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    assert offsets[-1] < SPAN_S


def test_arrivals_are_as_bursty_as_in_real_traces(requests):
    gaps = [later.offset_s - sooner.offset_s for sooner, later in pairwise(requests)]
    assert 2.5 <= pstdev(gaps) / fmean(gaps) <= 3.8
    by_hour = Counter(int(request.offset_s // HOUR_S) for request in requests)
    counts = [by_hour[hour] for hour in range(24 * DAYS)]
    assert 61 <= pstdev(counts) ** 2 / fmean(counts) <= 156


def test_days_have_busy_hours_and_quiet_weekends(requests):
    hours = Counter(int(request.offset_s % DAY_S // HOUR_S) for request in requests)
    assert sum(hours[hour] for hour in range(9, 18)) > 2 * sum(hours[hour] for hour in range(9))
    days = Counter(int(request.offset_s // DAY_S) for request in requests)
    weekends = fmean(days[day] for day in (2, 3, 9, 10))
    weekdays = fmean(days[day] for day in range(DAYS) if day not in (2, 3, 9, 10))
    assert 0.3 < weekends / weekdays < 0.55


def test_scalable_jobs_have_36_percent_of_load(requests):
    scalable = [request for request in requests if request.scalable]
    assert len(scalable) / len(requests) == pytest.approx(0.05, abs=1e-4)
    assert gpu_s(scalable) / gpu_s(requests) == pytest.approx(0.36, abs=0.01)
    assert fmean(request.duration_s for request in scalable) == pytest.approx(14.2 * HOUR_S)


def test_most_jobs_have_one_gpu(requests):
    assert 0.6 < fmean(request.gpus == 1 for request in requests) < 0.8
    large = [request for request in requests if request.gpus >= 8]
    assert 0.6 < gpu_s(large) / gpu_s(requests) < 0.8


def test_durations_range_from_30_s_to_10_days(requests):
    durations = [request.duration_s for request in requests]
    assert min(durations) >= 30
    assert 2 * DAY_S < max(durations) <= 10 * DAY_S
    assert 300 < median(durations) < 500
    # The baseline's mean JCT less its mean queuing time.
    assert fmean(durations) == pytest.approx(16_610 - 3_072, rel=0.03)


def test_baseline_matches_first_row_of_table_3_5(default_run):
    assert default_run.utilisation == pytest.approx(0.72, abs=0.02)
    assert fmean(default_run.queuing_s) == pytest.approx(3_072, rel=0.1)
    assert median(default_run.queuing_s) == pytest.approx(55, abs=20)
    assert fmean(default_run.completion_s) == pytest.approx(16_610, rel=0.05)
    assert median(default_run.completion_s) == pytest.approx(791, rel=0.3)
    assert quantile(default_run.completion_s, 0.95) == pytest.approx(82_933, rel=0.05)


@pytest.mark.slow
def test_seeds_change_queuing_but_not_load(requests):
    run = run_baseline(requests, TRAINING_GPUS // 8, SPAN_S)
    assert run.utilisation == pytest.approx(0.72, abs=0.02)
    assert 1_000 < fmean(run.queuing_s) < 5_500


def test_fewer_days_and_gpus_get_fewer_jobs():
    assert len(generate_requests(0, days=1)) == round(JOBS / 15)
    assert len(generate_requests(0, days=1, jobs=17)) == 17


@pytest.mark.parametrize("gpus", [8, 80, 352, 1_768])
def test_smaller_clusters_are_loaded_alike_by_smaller_demands(gpus):
    requests = generate_requests(0, gpus=gpus, days=15)
    assert max(request.gpus for request in requests) == max(128 * gpus // TRAINING_GPUS, 8)
    # On one server the longest of a few jobs decide.
    assert gpu_s(requests) / (gpus * SPAN_S) == pytest.approx(0.78, rel=0.15 if gpus == 8 else 0.05)


def test_window_keeps_arrivals_and_earlier_remainders():
    before = JobRequest(0.0, "u", 2, DAY_S + 5, scalable=True)
    over = JobRequest(10.0, "u", 1, DAY_S - 10, scalable=False)
    within = JobRequest(DAY_S + 60, "u", 1, 9.0, scalable=False)
    after = JobRequest(2 * DAY_S, "u", 1, 9.0, scalable=False)
    assert window([before, over, within, after], first_day=1, days=1) == [
        JobRequest(0.0, "u", 2, 5.0, scalable=True),
        JobRequest(60.0, "u", 1, 9.0, scalable=False),
    ]


def test_middle_of_week_is_busy():
    day = window(generate_requests(0, days=6), first_day=5, days=1)
    assert run_baseline(day, TRAINING_GPUS // 8, DAY_S).utilisation > 0.8
    empty = generate_requests(0, days=1)
    assert run_baseline(empty, TRAINING_GPUS // 8, DAY_S).utilisation < 0.4


@pytest.mark.parametrize("wrong", [{"gpus": 0}, {"days": 0}, {"days": math.nan}, {"jobs": 0}])
def test_a_workload_of_nothing_is_refused(wrong):
    with pytest.raises(WorkloadError, match="needed"):
        generate_requests(0, **wrong)
