"""Drawn workloads: the mix, the density and the tasks of a measured one, in any size."""

from collections import Counter

import pytest

from bench.merging.curves import CurveSetting
from bench.merging.measured import WorkloadJob
from bench.merging.merging_trial import MEASURED_GPUS, draw

MEASURED = [
    WorkloadJob(f"job-{n}", 10.0 * n + 5.0, "red" if n % 4 else "blue", 1, 8, CurveSetting("1e-4", 1), 0.8)
    for n in range(200)
]


def rate(jobs, gpus) -> float:
    return len(jobs) / (jobs[-1].submitted_s - jobs[0].submitted_s) / gpus


def test_jobs_follow_mix_in_order():
    jobs = draw(MEASURED, MEASURED_GPUS, 2_000, 1.0, seed=1)
    shares = Counter(job.task for job in jobs)
    assert shares["red"] / 2_000 == pytest.approx(0.75, abs=0.04)
    assert len({job.name for job in jobs}) == 2_000
    times_s = [job.submitted_s for job in jobs]
    assert times_s == sorted(times_s)


@pytest.mark.parametrize(("gpus", "load"), [(32, 1.0), (240, 1.0), (240, 2.0)])
def test_arrivals_follow_load_per_gpu(gpus, load):
    jobs = draw(MEASURED, gpus, 3_000, load, seed=2)
    assert rate(jobs, gpus) == pytest.approx(load * rate(MEASURED, MEASURED_GPUS), rel=0.02)


def test_seed_determines_drawn_jobs():
    same, again, other = (draw(MEASURED, 32, 50, 1.0, seed) for seed in (3, 3, 4))
    assert same == again != other


def test_a_mix_is_not_drawn_from_one_job():
    with pytest.raises(ValueError, match="at least two measured jobs"):
        draw(MEASURED[:1], 32, 10, 1.0, seed=0)
