import math

import pytest

from infra.workloads.elastic.calibrated import generate_requests
from infra.workloads.elastic.jobs import (
    SAMPLES_PER_GPU_S,
    Abilities,
    DrawnElasticJob,
    ScalingRange,
    draw_jobs,
    lossy,
    shape,
    submissions,
)
from infra.workloads.elastic.requests import JobRequest
from schemas.installed import KINDS


@pytest.fixture(scope="module")
def requests() -> list[JobRequest]:
    return generate_requests(0, days=1)


def one(gpus: int, abilities: Abilities | None = None, scalable: bool = False) -> DrawnElasticJob:
    (job,) = draw_jobs([JobRequest(5.0, "u", gpus, 100.0, scalable)], abilities or Abilities(), 0)
    return job


def running_s(job: DrawnElasticJob, workers: int) -> float:
    """Return the job's true duration on `workers` workers, from start to end."""
    workload = job.workload
    speedup = workload.speedup[workers - 1] if workload.speedup else workers
    return workload.work_samples / (workload.samples_per_s * speedup)


@pytest.mark.parametrize(
    ("gpus", "scalable", "expected"),
    [
        (1, False, (1, 1)),
        (8, False, (1, 8)),
        (16, False, (2, 8)),
        (12, False, (2, 6)),
        (17, False, (17, 1)),
        (8, True, (4, 2)),
        (1, True, (1, 1)),
    ],
)
def test_demand_becomes_few_equal_workers(gpus, scalable, expected):
    request = JobRequest(0.0, "u", gpus, 1.0, scalable)
    assert shape(request, server_gpus=8) == expected
    assert math.prod(expected) == gpus


def test_inelastic_job_runs_as_in_trace():
    job = one(16)
    assert (job.workload.min_workers, job.workload.max_workers) == (2, 2)
    assert running_s(job, 2) == pytest.approx(100.0)


def test_elastic_job_halves_duration_on_twice_workers():
    job = one(8, scalable=True)
    assert (job.workload.min_workers, job.workload.max_workers, job.workload.gpus_per_worker) == (4, 8, 2)
    assert running_s(job, 4) == pytest.approx(100.0)
    assert running_s(job, 8) == pytest.approx(50.0)


def test_imperfect_scaling_changes_nothing_at_the_base_demand():
    job = one(8, Abilities(scaling=lossy), scalable=True)
    assert running_s(job, 4) == pytest.approx(100.0)
    assert running_s(job, 8) == pytest.approx(100.0 * 4 / 7.2)


def test_scaling_curves_keep_duration_at_base_demand(requests):
    seen: list[ScalingRange] = []

    def by_family(workers: ScalingRange) -> tuple[float, ...]:
        seen.append(workers)
        return tuple(count ** (0.5 + workers.family_draw / 2) for count in range(1, workers.max_workers + 1))

    jobs = draw_jobs(requests, Abilities(elastic_share=0.2, scaling=by_family), 0)
    elastic = [job for job in jobs if job.workload.max_workers > job.workload.min_workers]
    assert len(elastic) == len(seen) == len({workers.family_draw for workers in seen})
    assert sum(workers.family_draw for workers in seen) / len(seen) == pytest.approx(0.5, abs=0.05)
    for request, job in zip(requests, jobs, strict=True):
        assert running_s(job, job.workload.min_workers) == pytest.approx(request.duration_s, abs=0.01)


def test_in_ideal_every_job_scales():
    workload = one(1, Abilities("ideal")).workload
    assert (workload.min_workers, workload.max_workers) == (1, 2)
    assert workload.fungible
    assert workload.heterogeneous


def test_jobs_keep_demand_and_time_of_requests(requests):
    jobs = draw_jobs(requests, Abilities(), 0)
    assert len({job.job_id for job in jobs}) == len(requests)
    for request, job in zip(requests, jobs, strict=True):
        assert (job.offset_s, job.user) == (request.offset_s, request.user)
        assert job.workload.min_workers * job.workload.gpus_per_worker == request.gpus
        assert running_s(job, job.workload.min_workers) == pytest.approx(
            request.duration_s, abs=0.5 / SAMPLES_PER_GPU_S + 1e-6
        )


def test_checkpoints_are_kept_only_on_request(requests):
    assert not any(job.workload.keeps_checkpoints for job in draw_jobs(requests, Abilities(), 0))
    some = draw_jobs(requests, Abilities(checkpoint_share=0.8), 0)
    assert sum(job.workload.keeps_checkpoints for job in some) == round(0.8 * len(requests))


@pytest.mark.skipif("elastic" not in KINDS, reason="the elastic policy is not installed")
def test_jobs_become_submissions_at_their_times():
    job = one(2)
    (timed,) = submissions([job], "c", "z", start_s=1_000.0)
    assert timed.time_s == 1_005.0
    assert (timed.event.cell, timed.event.zone, timed.event.job_id) == ("c", "z", "job-00000")
    assert timed.event.workload is job.workload
    assert timed.event.terms.kind == "elastic"
