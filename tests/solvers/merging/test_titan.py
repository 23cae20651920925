"""Titan's program: the least sum of slowdowns, against every allocation there is."""

import itertools

import pytest
from hypothesis import given, settings

from solvers.merging.scheme_interface import Contender
from solvers.merging.titan import Titan
from tests.support.contenders import NOW_S, contender, crowds
from tests.support.examples import examples


def slowdown(job: Contender, size: int, fair_gpus: int, interval_s: float) -> float:
    """Straight from its definition."""
    fair = max((each for each in job.remaining_s if each <= fair_gpus), default=min(job.remaining_s))
    return max(job.remaining_s[size], interval_s) / max(job.remaining_s[fair], interval_s)


@given(crowd=crowds(max_jobs=4, max_gpus=12))
@settings(deadline=None, max_examples=examples(200))
def test_sum_of_slowdowns_is_least(crowd: tuple[list[Contender], int]) -> None:
    jobs, gpus = crowd
    granted = Titan().allocate(jobs, gpus, NOW_S)
    served = [job for job in jobs if job.job_id in granted]
    if not served:
        return

    def total(sizes: tuple[int, ...]) -> float:
        fair_gpus = gpus // len(served)
        return sum(slowdown(job, size, fair_gpus, 120.0) for job, size in zip(served, sizes, strict=True))

    least = min(
        total(sizes)
        for sizes in itertools.product(*(job.remaining_s for job in served))
        if sum(sizes) <= gpus
    )
    assert total(tuple(granted[job.job_id] for job in served)) == pytest.approx(least, rel=2e-4)


def test_gpus_go_to_largest_fall_of_slowdown() -> None:
    # With a fair share of 2 each: a is slowed down by 2, 1 or 0.5; b by 1.1, 1 or 0.9.
    jobs = [
        contender("a", 0, {1: 2_000.0, 2: 1_000.0, 3: 500.0}),
        contender("b", 1, {1: 9_900.0, 2: 9_000.0, 3: 8_100.0}),
    ]
    assert Titan().allocate(jobs, 4, NOW_S) == {"a": 3, "b": 1}


def test_job_ending_in_interval_is_not_accelerated() -> None:
    jobs = [contender("a", 0, {1: 119.0, 2: 60.0}), contender("b", 1, {1: 1_000.0, 2: 990.0})]
    assert Titan(interval_s=120.0).allocate(jobs, 4, NOW_S) == {"a": 1, "b": 2}
    assert Titan(interval_s=60.0).allocate(jobs, 4, NOW_S) == {"a": 2, "b": 2}


def test_longest_jobs_wait_when_gpus_lack() -> None:
    jobs = [contender(name, arrival, {1: 900.0 - arrival, 2: 500.0}) for arrival, name in enumerate("cab")]
    assert Titan().allocate(jobs, 2, NOW_S) == {"a": 1, "b": 1}


def test_timed_out_search_keeps_allocation() -> None:
    jobs = [
        contender(f"j{arrival}", arrival, {size: 1e6 / size**0.9 for size in range(1, 65)}, gpus=2)
        for arrival in range(100)
    ]
    granted = Titan(time_limit_s=0.0).allocate(jobs, 200, NOW_S)
    assert granted == {job.job_id: 2 for job in jobs}
