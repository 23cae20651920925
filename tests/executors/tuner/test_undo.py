"""The safety net: a merge that is undone leaves each job as it was before it."""

import pytest

from executors.node.checkpoints import MANIFEST
from schemas.fleet import RunFinished, RunProgressed
from schemas.merging.commands import TransferMode
from schemas.merging.reports import TaskEvaluated
from tests.support.tuner_nodes import Fleet, assigned, order, released, workload
from tests.support.tuner_tasks import LoneWorker, reports_of

_LONG = 2_000


def train_alone(fleet: Fleet, job_id: str, least: int = 10) -> int:
    """Train a job for some steps, alone; how many they were."""
    fleet.assign(order(job_id, workload(_LONG)))
    fleet.until(lambda: any(each.samples_done >= 6 * least for each in fleet.reports(TaskEvaluated, job_id)))
    fleet.tell(released("n1", job_id))
    fleet.until_over(f"{job_id}/1")
    (end,) = fleet.ends(f"{job_id}/1")
    return end.samples_done // 6


def files_of(fleet: Fleet, job_id: str) -> dict[str, bytes]:
    (checkpoint,) = (fleet.root / "state" / "c" / "checkpoints" / job_id).iterdir()
    return {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != MANIFEST}


def test_jobs_go_on_from_before_a_temporal_merge(fleet: Fleet) -> None:
    done = {job_id: train_alone(fleet, job_id) for job_id in ("a", "b")}
    before = {job_id: files_of(fleet, job_id) for job_id in done}
    orders = [order(job_id, workload(_LONG), 2, count) for job_id, count in done.items()]
    fleet.assign(*orders, mode="temporal", generation=2)
    fleet.until(lambda: any(each.phase == "donor" for each in fleet.reports(TaskEvaluated, "b")))
    fleet.tell(released("n1", "a", "b", generation=2, reason="undone"))
    fleet.until_over("a/2", "b/2")
    for job_id, count in done.items():
        assert files_of(fleet, job_id) == before[job_id]
        assert f"n1 {job_id}/2 run.progressed {6 * count} complete" in fleet.told(job_id)
    # They go on alone, as if nothing had been.
    fleet.assign(order("b", workload(done["b"] + 3), 3, done["b"]), generation=3)
    fleet.until(lambda: list(fleet.ends("b/3")))
    assert "another workload" in fleet.told("b")[-1]
    fleet.assign(order("b", workload(_LONG), 4, done["b"]), generation=4)
    fleet.until(lambda: f"n1 b/4 run.started {6 * done['b']}" in fleet.told("b"))


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_jobs_that_had_not_begun_begin_anew(worker: LoneWorker, mode: TransferMode) -> None:
    orders = order("a", workload(20)), order("b", workload(20, dataset="other.jsonl"))
    worker.run(assigned("n1", *orders, mode=mode), 30 if mode == "temporal" else 10)
    assert worker.files.kept_samples("b") == 60
    assert worker.files.undo("b", "a", 1) == 0
    assert worker.files.kept_samples("b") == 0
    # Again, as after a crash in between.
    assert worker.files.undo("b", "a", 1) == 0


def test_an_undo_that_was_interrupted_is_finished(worker: LoneWorker) -> None:
    worker.run(assigned("n1", order("a")), 5)
    merged = order("a", generation=2, resume_iterations=5), order("b", generation=2)
    worker.run(assigned("n1", *merged, mode="temporal", generation=2), 4)
    assert worker.files.kept_samples("a") == 54
    worker.files.present.remove("a")  # here the process was killed
    assert worker.files.undo("a", "b", 2) == 30
    assert worker.files.undo("a", "b", 2) == 30


def test_a_merge_of_other_gpus_is_undone_to_before_its_first_generation(worker: LoneWorker) -> None:
    worker.run(assigned("n1", order("a")), 5)
    for generation, done in ((2, 5), (3, 8)):
        merged = order("a", generation=generation, resume_iterations=done), order("b", generation=generation)
        worker.run(assigned("n1", *merged, mode="temporal", generation=generation), 3)
    assert worker.files.kept_samples("a") == 66
    assert worker.files.undo("a", "b", 3) == 30


def test_a_receiver_that_was_told_to_start_anew_is_undone_to_before(worker: LoneWorker) -> None:
    worker.run(assigned("n1", order("b")), 5)
    for generation, done in ((2, 0), (3, 4)):
        merged = order("a", generation=generation, resume_iterations=done), order("b", generation=generation)
        worker.run(assigned("n1", *merged, mode="temporal", generation=generation), 4)
    assert worker.files.undo("b", "a", 3) == 30
    assert worker.files.kept_samples("b") == 30


def test_what_a_later_generation_has_trained_is_not_undone(worker: LoneWorker) -> None:
    merged = order("a"), order("b")
    worker.run(assigned("n1", *merged, mode="spatial"), 4)
    worker.run(assigned("n1", order("a", generation=2, resume_iterations=4), generation=2), 3)
    assert worker.files.undo("a", "b", 1) == 42


def test_a_job_that_is_over_stays_over(worker: LoneWorker) -> None:
    orders = order("a", workload(4)), order("b", workload(20))
    reports = worker.run(assigned("n1", *orders, mode="spatial"), 10, verdict="drop")
    assert len(reports_of(reports, RunFinished, "a")) == 1
    assert worker.files.undo("a", "b", 1) == 24
    assert worker.files.undo("b", "a", 1) == 0


@pytest.mark.parametrize("reason", ["withdrawn", "failed"])
def test_nothing_is_kept_of_a_job_that_is_withdrawn(fleet: Fleet, reason: str) -> None:
    fleet.assign(order("a", workload(_LONG)), order("b", workload(_LONG)), mode="spatial")
    fleet.until(lambda: fleet.reports(TaskEvaluated, "b"))
    command = released("n1", "a", "b", reason=reason).model_copy(update={"job_ids": ("a",)})
    fleet.tell(command)
    fleet.until_over("a/1", "b/1")
    assert fleet.checkpoints("a") == []
    # The other one goes on from where it is.
    assert len(fleet.checkpoints("b")) == 1
    ends = [each.samples_done for each in fleet.reports(RunProgressed) if each.complete]
    assert ends[0] == 0 < ends[1]
