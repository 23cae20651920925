"""A job that starts from the adapter of a finished job."""

from pathlib import Path

import pytest

from schemas.fleet import RunFailed, RunFinished
from schemas.merging.commands import AdapterSource, JobOrder
from tests.support.tuner_nodes import assigned, order, workload
from tests.support.tuner_tasks import LoneWorker, reports_of

OTHER = workload(8, dataset="other.jsonl")


def starting(job_id: str, source: str, digest: str) -> JobOrder:
    """Return the order of a job that starts from an adapter."""
    adapter = AdapterSource(job_id=source, digest=digest)
    return order(job_id, OTHER).model_copy(update={"starts_from": adapter})


def finished(worker: LoneWorker, *orders: JobOrder, **how: object) -> RunFinished:
    """Run a task, and return the end of its last job."""
    reports = worker.run(assigned("n1", *orders, **how))
    (end,) = reports_of(reports, RunFinished, orders[-1].job_id)
    return end


def test_start_equals_temporal_merge(worker: LoneWorker, tmp_path: Path) -> None:
    merged = finished(worker, order("a", workload(6)), order("b", OTHER), mode="temporal")
    apart = LoneWorker(worker.base, tmp_path / "apart", worker.settings)
    donor = finished(apart, order("a", workload(6)))
    assert donor.adapter_digest
    later = finished(apart, starting("b", "a", donor.adapter_digest))
    assert later.adapter_digest == merged.adapter_digest
    assert later.adapter_digest != finished(apart, order("c", OTHER)).adapter_digest


@pytest.mark.parametrize("source", ["a", "absent"])
def test_other_or_absent_adapter_is_refused(worker: LoneWorker, source: str) -> None:
    finished(worker, order("a", workload(2)))
    reports = worker.run(assigned("n1", starting("b", source, "0" * 64)))
    (failed,) = reports_of(reports, RunFailed, "b")
    assert f"the adapter of its donor {source} was removed" in failed.error
    assert not failed.permanent
