from collections import Counter
from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest

from infra.workloads.arrivals import Arrival, cut_from_trace, generate
from infra.workloads.trace import TraceJob

MANY = 40_000


def variation(arrivals: list[Arrival]) -> float:
    gaps = [later.offset_s - earlier.offset_s for earlier, later in pairwise(arrivals)]
    return pstdev(gaps) / fmean(gaps)


@pytest.fixture(scope="module")
def generated() -> list[Arrival]:
    return generate(MANY, span_s=86_400.0, seed=7)


def test_the_same_seed_draws_the_same_arrivals():
    assert generate(50, 100.0, 1) == generate(50, 100.0, 1)
    assert generate(50, 100.0, 1) != generate(50, 100.0, 2)


def test_generated_arrivals_may_be_none():
    assert generate(0, 100.0, 1) == []


def test_arrivals_fill_the_span_in_order(generated):
    offsets = [arrival.offset_s for arrival in generated]
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0.0, 86_400.0)


def test_gaps_vary_as_on_philly(generated):
    assert variation(generated) == pytest.approx(2.5, abs=0.25)


def test_hourly_arrivals_are_uneven_as_in_traces(generated):
    mean_gap_s = 86_400.0 / MANY
    # 42 jobs arrive per hour on Philly.
    counts = Counter(int(arrival.offset_s / (42 * mean_gap_s)) for arrival in generated)
    by_hour = [counts[hour] for hour in range(max(counts) + 1)]
    assert 61 <= pstdev(by_hour) ** 2 / fmean(by_hour) <= 156


def test_one_tenant_is_half_in_runs(generated):
    users = [arrival.user for arrival in generated]
    assert users.count("tenant-1") / MANY == pytest.approx(0.505, abs=0.03)
    assert fmean(a == b for a, b in pairwise(users)) == pytest.approx(0.80, abs=0.02)


def test_sizes_have_median_and_tail_of_trace(generated):
    sizes = sorted(arrival.gpu_s for arrival in generated)
    assert median(sizes) == pytest.approx(1_211, rel=0.1)
    assert sum(sizes[-MANY // 100 :]) > 0.4 * sum(sizes)


def trace(*times: float) -> list[TraceJob]:
    return [TraceJob(f"j{i}", "u", time, 60.0 + i, 2) for i, time in enumerate(times)]


def test_a_cut_keeps_the_proportions_of_the_gaps():
    jobs = trace(0, 1, 3, 100, 101)
    assert cut_from_trace(jobs, 5, 202.0, seed=0) == [
        Arrival(offset, "u", job.gpu_s) for offset, job in zip((0, 2, 6, 200, 202), jobs, strict=True)
    ]


def test_cut_is_consecutive_at_drawn_place():
    jobs = trace(*range(0, 1_000, 10))
    cuts = {cut_from_trace(jobs, 3, 20.0, seed)[0].gpu_s for seed in range(20)}
    assert len(cuts) > 10
    assert [a.offset_s for a in cut_from_trace(jobs, 3, 20.0, seed=3)] == [0.0, 10.0, 20.0]


def test_a_cut_never_lies_within_a_single_instant():
    jobs = trace(*[5.0] * 50, 6.0)
    for seed in range(10):
        arrivals = cut_from_trace(jobs, 10, 30.0, seed)
        assert arrivals[-1].offset_s == 30.0


@pytest.mark.parametrize(
    ("jobs", "fault"), [(trace(1, 2), "has 2 jobs, 3 are needed"), (trace(1, 1, 1), "at the same time")]
)
def test_a_trace_that_cannot_be_cut_is_refused(jobs, fault):
    with pytest.raises(ValueError, match=fault):
        cut_from_trace(jobs, 3, 10.0, seed=0)
