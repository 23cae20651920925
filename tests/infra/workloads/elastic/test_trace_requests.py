import math
from pathlib import Path

import pytest

from infra.workloads.elastic.requests import (
    DAY_S,
    HOUR_S,
    JobRequest,
    requests_as_recorded,
    requests_from_trace,
    rounding_note,
)
from infra.workloads.timed import WorkloadError
from infra.workloads.trace import TraceJob, read_trace

TRACES = Path(__file__).parents[4] / "../shared/traces"
REAL = [TRACES / "jobs_philly.csv.gz", TRACES / "jobs_elasticflow_itp.csv.gz"]


def trace(jobs: int, gpus: int = 1, duration_s: float = HOUR_S) -> list[TraceJob]:
    return [TraceJob(f"j{i}", f"u{i % 3}", 7.0 * i * i, duration_s, gpus) for i in range(jobs)]


def gpu_s(requests: list[JobRequest]) -> float:
    return math.fsum(request.gpu_s for request in requests)


def test_trace_jobs_make_load_and_fill_days():
    requests = requests_from_trace(trace(100), gpus=4, days=0.5, seed=1, load=0.5)
    assert len(requests) == 0.5 * 4 * 12
    assert requests[0].offset_s == 0.0
    assert requests[-1].offset_s == pytest.approx(DAY_S / 2)
    assert {request.duration_s for request in requests} == {HOUR_S}


def test_one_factor_scales_all_gaps():
    jobs = trace(24)
    requests = requests_from_trace(jobs, gpus=4, days=0.5, seed=1, load=0.5)
    scale = requests[1].offset_s / jobs[1].submit_time_s
    assert [request.offset_s for request in requests] == pytest.approx(
        [scale * j.submit_time_s for j in jobs]
    )
    assert [request.user for request in requests] == [job.user for job in jobs]


def test_demands_are_cut_and_idle_jobs_left_out():
    jobs = [*trace(30, gpus=64, duration_s=30 * DAY_S), TraceJob("idle", "u", 1e6, 0.0, 1)]
    requests = requests_from_trace(jobs, gpus=16, days=1, seed=0, load=10)
    assert {(request.gpus, request.duration_s) for request in requests} == {(8, DAY_S)}


def test_seeds_choose_the_place_in_the_trace():
    jobs = trace(2_000)
    places = {tuple(requests_from_trace(jobs, 4, 1, seed, load=0.5)) for seed in range(5)}
    assert len(places) == 5
    assert requests_from_trace(jobs, 4, 1, 3) == requests_from_trace(jobs, 4, 1, 3)


def test_trace_with_too_little_work_is_refused():
    with pytest.raises(WorkloadError, match="has 10 GPU hours that fit the cluster, 1536 are needed"):
        requests_from_trace(trace(10), gpus=64, days=1, seed=0, load=1.0)


@pytest.mark.parametrize(("gpus", "days", "load"), [(1, 1, 1), (8, 0, 1), (8, 1, 0), (8, math.nan, 1)])
def test_empty_cluster_time_or_load_is_refused(gpus, days, load):
    with pytest.raises(WorkloadError, match="at least 2 GPUs are needed"):
        requests_from_trace(trace(10), gpus, days, seed=0, load=load)


def test_fitted_file_is_used_unchanged():
    jobs = [*trace(1), TraceJob("a", "u", 3.0, 60.0, 16), TraceJob("idle", "u", 4.0, 0.0, 1)]
    requests = requests_as_recorded(jobs, gpus=16, seed=0)
    assert [(request.offset_s, request.gpus, request.duration_s) for request in requests] == [
        (0.0, 1, HOUR_S),
        (3.0, 8, 60.0),
    ]


def test_parts_of_gpu_are_rounded_up_with_note():
    jobs = [
        TraceJob("whole", "u", 0.0, 100.0, 2),
        TraceJob("share", "u", 1.0, 100.0, 0.25),
        TraceJob("more", "u", 2.0, 100.0, 1.5),
        TraceJob("idle", "u", 3.0, 0.0, 0.5),
    ]
    assert [request.gpus for request in requests_as_recorded(jobs, gpus=16, seed=0)] == [2, 1, 2]
    note = rounding_note(jobs)
    assert note is not None
    assert note.startswith("2 of 4 jobs ask for a part of a GPU: each is rounded up to whole GPUs")
    assert note.endswith("adds 33.3% to the GPU time of the trace")
    assert rounding_note(jobs[:1]) is None


def test_a_file_of_idle_jobs_is_refused():
    with pytest.raises(WorkloadError, match="0 jobs that took any time"):
        requests_as_recorded([TraceJob("idle", "u", 4.0, 0.0, 1)], gpus=16, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_traces_load_thesis_cluster_for_day(path):
    if not path.exists():
        pytest.skip(f"no {path.name}")
    requests = requests_from_trace(read_trace(path), gpus=3_544, days=1, seed=0)
    assert gpu_s(requests) / (3_544 * DAY_S) == pytest.approx(0.78, abs=0.03)
    scalable = [request for request in requests if request.scalable]
    assert min(request.gpus for request in scalable) > 1
    # Only 7 % of Philly's jobs have several GPUs, so they are fewer there, for the same load.
    assert 0.02 < len(scalable) / len(requests) < 0.06
    assert gpu_s(scalable) / gpu_s(requests) == pytest.approx(0.36, abs=0.02)
