"""Jobs of the demo's third scene: their data, and the pairs whose weights fit."""

from pathlib import Path

from infra.demo.merging import _ALONE, _DONOR, _LEARNER, _RECORDS, _UNRELATED, _WORKLOADS, write_tasks
from streams.policies.merging.kind_of_jobs import KindOfJobs


def test_record_counts_match_jobs(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    for workload in _WORKLOADS.values():
        lines = (tmp_path / workload.dataset.path).read_text(encoding="utf-8").splitlines()
        assert len(lines) == workload.dataset.samples
        assert (tmp_path / str(workload.validation_path)).is_file()
    assert {path.stem.removesuffix("-validation") for path in tmp_path.iterdir()} == _RECORDS.keys()


def test_receiver_learns_only_from_its_donor() -> None:
    forms = {job_id: KindOfJobs.of(workload).forms["temporal"] for job_id, workload in _WORKLOADS.items()}
    fitting = {job_id for job_id in forms if forms[job_id] == forms[_LEARNER]}
    assert fitting == {_DONOR, _LEARNER, _ALONE}
    assert {job_id for job_id in fitting if _WORKLOADS[job_id].sharing} == {_DONOR, _LEARNER}
    assert _UNRELATED not in fitting


def test_unshared_job_differs_only_in_sharing() -> None:
    assert _WORKLOADS[_ALONE].model_copy(update={"sharing": True}) == _WORKLOADS[_LEARNER]
