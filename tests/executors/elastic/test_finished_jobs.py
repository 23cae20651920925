"""Reports about a job that is assigned again after its end come from the record of finished jobs."""

from pathlib import Path

import pytest

from executors.node.checkpoints import FINAL, CheckpointStore
from executors.node.job_states import FINISHED_JOB
from executors.node.places import checkpoint_root
from schemas.elastic.workload import ElasticWorkload
from schemas.fleet import RunFailed, RunFinished, RunStarted
from tests.support.elastic_nodes import Fleet, assigned, workload
from tests.support.nodes import CELL


def final(fleet: Fleet) -> Path:
    return store_root(fleet) / "j" / FINAL


def store_root(fleet: Fleet) -> Path:
    return checkpoint_root(fleet.root / "state", CELL)


def starts(fleet: Fleet, node: str) -> list[int]:
    return [report.samples_done for report in fleet.reports(RunStarted, "j", node)]


def test_a_finished_job_is_reported_again_without_training(fleet: Fleet) -> None:
    fleet.assign("j", 1, [("n1", 1)], workload(16))
    fleet.until(fleet.is_over("j", "n1"))
    fleet.assign("j", 2, [("n2", 1)], workload(16), resumes=True)
    fleet.until(fleet.is_over("j", "n2", generation=2))
    assert starts(fleet, "n2") == [16]
    first, again = fleet.reports(RunFinished, "j")
    assert (again.samples_done, again.loss) == (first.samples_done, first.loss)


@pytest.mark.parametrize(
    "other", [workload(24), workload(16, hyperparameters={"seed": 3})], ids=["samples", "seed"]
)
def test_a_record_is_no_result_of_another_workload(fleet: Fleet, other: ElasticWorkload) -> None:
    fleet.assign("j", 1, [("n1", 1)], workload(16))
    fleet.until(fleet.is_over("j", "n1"))
    fleet.assign("j", 1, [("n2", 1)], other)
    fleet.until(fleet.is_over("j", "n2"))
    (failure,) = fleet.reports(RunFailed, "j")
    assert (failure.node, failure.permanent) == ("n2", True)
    assert failure.error == f"the record {final(fleet)} of a finished job is of another workload"


def test_a_record_is_no_result_of_another_user(fleet: Fleet) -> None:
    fleet.assign("j", 1, [("n1", 1)], workload(16))
    fleet.until(fleet.is_over("j", "n1"))
    of_another = assigned("n2", "j", 1, [("n2", 1)], workload(16)).model_copy(update={"user": "v"})
    fleet.nodes["n2"].runner.apply(of_another)
    fleet.until(fleet.is_over("j", "n2"))
    (failure,) = fleet.reports(RunFailed, "j")
    assert (failure.node, failure.permanent) == ("n2", True)
    assert failure.error == f"the record {final(fleet)} of a finished job is of c/u/j, not c/v/j"


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_job_with_damaged_record_is_trained_again(fleet: Fleet, damage: str) -> None:
    fleet.assign("j", 1, [("n1", 1)], workload(16))
    fleet.until(fleet.is_over("j", "n1"))
    record = final(fleet) / FINISHED_JOB
    content = record.read_bytes()
    record.unlink()
    if damage == "cut":
        record.write_bytes(content[:-3])
    fleet.assign("j", 2, [("n2", 2)], workload(16), resumes=True)
    fleet.until(fleet.is_over("j", "n2", generation=2))
    assert starts(fleet, "n2") == [0]
    assert [report.node for report in fleet.reports(RunFinished, "j")] == ["n1", "n2"]
    assert fleet.checkpoints("j") == [FINAL]
    assert record.exists()


def test_damaged_record_resumes_from_last_valid_checkpoint(fleet: Fleet) -> None:
    fleet.add("n1", checkpoint_s=0.05)
    endless = workload(10**6)
    fleet.assign("j", 1, [("n1", 1)], endless)
    fleet.until(fleet.has_trained("j"))
    fleet.release("j", 1, ["n1"], "preempted")
    fleet.until(fleet.is_over("j", "n1"))
    samples_done = fleet.progress("j")
    # As a crash between the record and the removal of the checkpoints leaves it, on a disk that rots.
    final(fleet).mkdir()
    (final(fleet) / FINISHED_JOB).write_bytes(b"{}")
    fleet.assign("j", 2, [("n2", 1)], endless, resumes=True, resume_samples=samples_done)
    fleet.until(fleet.has_started("j", 2, "n2"))
    fleet.release("j", 2, ["n2"], "preempted")
    fleet.until(fleet.is_over("j", "n2", generation=2))
    assert starts(fleet, "n2") == [samples_done]
    assert not fleet.reports(RunFailed)


def test_record_of_other_format_fails_run(fleet: Fleet) -> None:
    CheckpointStore(store_root(fleet)).conclude("j", 1, 16, {"finished_run.json": b"{}"})
    fleet.assign("j", 2, [("n1", 1)], workload(16), resumes=True)
    fleet.until(fleet.is_over("j", "n1", generation=2))
    (failure,) = fleet.reports(RunFailed, "j")
    assert failure.permanent
    assert failure.error == f"the record {final(fleet)} of a finished job lacks {FINISHED_JOB}"
