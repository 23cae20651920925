"""Fine-tuning jobs as simulations draw them."""

from collections import Counter
from pathlib import Path

import pytest

from infra.workloads.drawing import draw_jobs
from infra.workloads.merging import DEFAULT_JOBS, DEFAULT_SPAN_S, FEWEST_SAMPLES, MOST_SAMPLES
from infra.workloads.timed import WorkloadError
from schemas.jobs import JobSubmitted
from schemas.merging.workload import MergingTerms, TuningWorkload
from tests.infra.simulation.merging.small import MODEL, ZONE, merging_cell

CELL = merging_cell(nodes=8, gpus=4)


def workloads(seed: int = 1, **options) -> list[TuningWorkload]:
    found = []
    for timed in draw_jobs(CELL, seed, **options):
        assert isinstance(timed.event, JobSubmitted)
        assert isinstance(timed.event.workload, TuningWorkload)
        found.append(timed.event.workload)
    return found


def test_jobs_arrive_in_order_with_zones_model():
    jobs = draw_jobs(CELL, 1)
    assert len(jobs) == len({timed.event.job_id for timed in jobs}) == DEFAULT_JOBS
    times_s = [timed.time_s for timed in jobs]
    assert times_s == sorted(times_s)
    assert 0 <= times_s[0] <= times_s[-1] <= DEFAULT_SPAN_S
    assert {timed.event.zone for timed in jobs} == {ZONE}
    assert all(isinstance(timed.event.terms, MergingTerms) for timed in jobs)
    assert {job.model for job in workloads()} == {MODEL}


def test_a_seed_draws_the_same_again():
    assert draw_jobs(CELL, 3) == draw_jobs(CELL, 3)
    assert draw_jobs(CELL, 3) != draw_jobs(CELL, 4)


def test_requested_datasets_are_used_equally():
    counts = Counter(job.dataset.path for job in workloads(jobs=100, options={"datasets": "5"}))
    assert sorted(counts.values()) == [20] * 5
    one = {job.dataset for job in workloads(jobs=10, options={"datasets": "1"})}
    assert len(one) == 1


def test_jobs_of_dataset_share_size_and_target():
    by_path: dict[str, set] = {}
    for job in workloads():
        assert FEWEST_SAMPLES <= job.dataset.samples <= MOST_SAMPLES
        by_path.setdefault(job.dataset.path, set()).add((job.dataset.samples, job.target))
    assert all(len(found) == 1 for found in by_path.values())


@pytest.mark.parametrize(("share", "count"), [("0", 0), ("0.25", 250), ("1", 1_000)])
def test_shares_are_met(share: str, count: int):
    sharing = workloads(jobs=1_000, options={"sharing_share": share})
    assert sum(job.sharing for job in sharing) == pytest.approx(count, abs=45)
    pipelines = workloads(jobs=1_000, options={"pipeline_share": share})
    assert sum(job.pipeline for job in pipelines) == pytest.approx(count, abs=45)
    assert all(job.gpus == 4 for job in pipelines if job.pipeline)


def test_longer_jobs_of_a_trace_have_larger_datasets(tmp_path: Path):
    rows = [f"j{n},u{n % 3},{60 * n},{100 * (n % 10 + 1)},2,,,m" for n in range(40)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model", *rows]))
    jobs = draw_jobs(CELL, 1, trace=trace, jobs=40, span_s=1_000.0, options={"datasets": "10"})
    sizes = [timed.event.workload.dataset.samples for timed in jobs]
    assert {timed.event.user for timed in jobs} == {"u0", "u1", "u2"}
    assert sizes[:10] == sorted(sizes[:10])
    assert jobs[-1].time_s == 1_000.0


def test_pipelines_need_nodes_that_can_run_them():
    small = merging_cell(nodes=2, gpus=2)
    assert draw_jobs(small, 1, jobs=3)
    with pytest.raises(WorkloadError, match=f"zone {ZONE} has nodes of 2 GPUs, .* needs 4 on one"):
        draw_jobs(small, 1, jobs=3, options={"pipeline_share": "0.1"})


@pytest.mark.parametrize(
    ("option", "value"),
    [("datasets", "0"), ("sharing_share", "1.1"), ("pipeline_share", "nan"), ("load", "1")],
)
def test_invalid_options_are_refused(option: str, value: str):
    with pytest.raises(WorkloadError, match=f"policy merging: {option}: .*datasets, sharing_share"):
        draw_jobs(CELL, 1, options={option: value})
