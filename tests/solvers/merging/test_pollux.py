"""Pollux without batch tuning: the harmonic mean of speedups over fair shares."""

import itertools
import math

import pytest
from hypothesis import given, settings

from solvers.merging.rival_schemes import SPEEDUP_FLOOR, FixedBatchPollux
from solvers.merging.scheme_interface import Contender
from tests.support.contenders import NOW_S, contender, crowds
from tests.support.examples import examples

WITHIN = 0.99
"""Least ratio of the search's mean to the best mean, on small instances."""


def mean_speedup(jobs: list[Contender], gpus: int, sizes: tuple[int, ...]) -> float:
    """The harmonic mean, straight from its definition."""
    fair_gpus = math.ceil(gpus / len(jobs))
    inverse = []
    for job, size in zip(jobs, sizes, strict=True):
        fair = max((each for each in job.total_s if each <= fair_gpus), default=min(job.total_s))
        speedup = job.total_s[fair] / job.total_s[size] if size else 0.0
        if job.gpus and size != job.gpus:
            age_s = NOW_S - job.submitted_s
            speedup *= max(age_s - 30.0 * job.restarts, 0.0) / (age_s + 30.0)
        inverse.append(1.0 / (speedup + SPEEDUP_FLOOR))
    return len(jobs) / sum(inverse)


@given(crowd=crowds(max_jobs=4, max_gpus=10))
@settings(deadline=None, max_examples=examples(200))
def test_search_is_near_best_mean(
    crowd: tuple[list[Contender], int],
) -> None:
    jobs, gpus = crowd
    if not jobs:
        return
    granted = FixedBatchPollux().allocate(jobs, gpus, NOW_S)
    best = max(
        mean_speedup(jobs, gpus, sizes)
        for sizes in itertools.product(*([0, *job.remaining_s] for job in jobs))
        if sum(sizes) <= gpus
    )
    found = mean_speedup(jobs, gpus, tuple(granted.get(job.job_id, 0) for job in jobs))
    assert found >= WITHIN * best


def test_equal_jobs_share_alike_whatever_they_have_left() -> None:
    scaling = {1: 800.0, 2: 400.0, 4: 200.0}
    long = contender("long", 0, scaling, total_s=scaling)
    short = contender("short", 1, {size: each / 100 for size, each in scaling.items()}, total_s=scaling)
    assert FixedBatchPollux().allocate([long, short], 4, NOW_S) == {"long": 2, "short": 2}


def test_gpus_go_to_the_job_that_scales_better() -> None:
    scales = contender("scales", 0, {1: 800.0, 2: 400.0, 3: 267.0})
    hardly = contender("hardly", 1, {1: 800.0, 2: 790.0, 3: 780.0})
    assert FixedBatchPollux().allocate([scales, hardly], 4, NOW_S) == {"scales": 3, "hardly": 1}


@pytest.mark.parametrize(("age_s", "restarts", "size"), [(60.0, 0, 1), (3_600.0, 0, 2), (3_600.0, 60, 1)])
def test_young_or_restarted_job_is_kept(age_s: float, restarts: int, size: int) -> None:
    scaling = {1: 800.0, 2: 700.0}
    job = contender("a", 0, scaling, gpus=1, submitted_s=NOW_S - age_s, restarts=restarts)
    assert FixedBatchPollux().allocate([job], 2, NOW_S) == {"a": size}


def test_only_seed_changes_search() -> None:
    jobs = [
        contender(f"j{arrival}", arrival, {size: 1e4 / size**0.7 + arrival for size in range(1, 25)})
        for arrival in range(30)
    ]
    found = [FixedBatchPollux(seed=seed, generations=1).allocate(jobs, 100, NOW_S) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
