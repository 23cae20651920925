"""The safety net: of a merge that is undone nothing is kept of who has learned in it."""

import pytest

from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.merging.commands import TransferMode
from schemas.merging.reports import TaskEvaluated
from tests.support.tuner_nodes import Fleet, assigned, order, released, workload
from tests.support.tuner_tasks import LoneWorker, reports_of

_LONG = 2_000


def train_alone(fleet: Fleet, job_id: str, least: int = 10) -> int:
    """Train a job for some steps, alone; how many they were."""
    fleet.assign(order(job_id, workload(_LONG)))
    fleet.until(lambda: any(each.samples_done >= 6 * least for each in fleet.reports(TaskEvaluated, job_id)))
    fleet.send(released("n1", job_id))
    fleet.until_over(f"{job_id}/1")
    (end,) = fleet.ends(f"{job_id}/1")
    return end.samples_done // 6


def test_undone_merge_keeps_donor_and_resets_receiver(
    fleet: Fleet,
) -> None:
    done = train_alone(fleet, "a")
    fleet.assign(
        order("a", workload(_LONG), 2, done), order("b", workload(_LONG), 2), mode="temporal", generation=2
    )
    fleet.until(lambda: any(each.phase == "donor" for each in fleet.reports(TaskEvaluated, "b")))
    fleet.send(released("n1", "b", generation=2, reason="undone"))
    fleet.until_over("a/2", "b/2")
    (kept,) = fleet.ends("a/2")
    assert kept.samples_done > 6 * done
    assert "n1 b/2 run.progressed 0 complete" in fleet.short_reports("b")
    assert fleet.checkpoints("a")[-1] == f"2-{kept.samples_done}"
    assert fleet.checkpoints("b") == []
    # Both go on alone.
    fleet.assign(order("a", workload(_LONG), 3, kept.samples_done // 6), generation=3)
    fleet.until(lambda: f"n1 a/3 run.started {kept.samples_done}" in fleet.short_reports("a"))
    fleet.assign(order("b", workload(_LONG), 3), generation=3)
    fleet.until(lambda: "n1 b/3 run.started 0" in fleet.short_reports("b"))


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_receiver_of_merge_restarts(worker: LoneWorker, mode: TransferMode) -> None:
    orders = order("a", workload(20)), order("b", workload(20, dataset="other.jsonl"))
    worker.run(assigned("n1", *orders, mode=mode), 30 if mode == "temporal" else 10)
    assert worker.files.kept_samples(orders[1]) == 60
    assert worker.files.undo("b", 1) == 0
    assert worker.files.kept_samples(orders[1]) == 0
    # Again, as after a crash in between.
    assert worker.files.undo("b", 1) == 0


@pytest.mark.parametrize("resume_iterations", [0, 5])
def test_kept_state_of_undone_merge_is_unused(worker: LoneWorker, resume_iterations: int) -> None:
    worker.run(assigned("n1", order("a"), order("b"), mode="spatial"), 10)
    anew = order("b", generation=2, resume_iterations=resume_iterations)
    anew = anew.model_copy(update={"oldest_generation": 2})
    assert worker.files.kept_samples(anew) == 0
    reports = worker.run(assigned("n1", anew, generation=2), 3)
    assert [each.samples_done for each in reports_of(reports, RunStarted, "b")] == [0]
    assert worker.files.kept_samples(anew) == 18


@pytest.mark.parametrize(("mode", "job"), [("temporal", "b"), ("spatial", "a"), ("spatial", "b")])
def test_job_with_progress_does_not_learn(worker: LoneWorker, mode: TransferMode, job: str) -> None:
    worker.run(assigned("n1", order(job)), 5)
    done = {job: 5}
    orders = [order(each, generation=2, resume_iterations=done.get(each, 0)) for each in ("a", "b")]
    reports = worker.run(assigned("n1", *orders, mode=mode, generation=2), 4)
    (failed,) = reports_of(reports, RunFailed, job)
    assert (
        "mode: the receiver of a merge has no progress before it, this job has 5 iterations" in failed.error
    )
    assert worker.files.kept_samples(order(job)) == 30


def test_later_generation_is_not_undone(worker: LoneWorker) -> None:
    merged = order("a"), order("b")
    worker.run(assigned("n1", *merged, mode="spatial"), 4)
    worker.run(assigned("n1", order("a", generation=2, resume_iterations=4), generation=2), 3)
    assert worker.files.undo("a", 1) == 42


def test_a_job_that_is_over_stays_over(worker: LoneWorker) -> None:
    orders = order("a", workload(4)), order("b", workload(20))
    reports = worker.run(assigned("n1", *orders, mode="spatial"), 10)
    assert len(reports_of(reports, RunFinished, "a")) == 1
    assert worker.files.undo("a", 1) == 24
    assert worker.files.undo("b", 1) == 0


def test_later_generation_may_restart_ended_job(worker: LoneWorker) -> None:
    orders = order("a", workload(4)), order("b", workload(20))
    worker.run(assigned("n1", *orders, mode="spatial"), 10)
    anew = order("a", workload(4), generation=2).model_copy(update={"oldest_generation": 2})
    reports = worker.run(assigned("n1", anew, generation=2), 10)
    assert [each.samples_done for each in reports_of(reports, RunStarted, "a")] == [0]
    assert [each.samples_done for each in reports_of(reports, RunFinished, "a")] == [24]


@pytest.mark.parametrize("reason", ["withdrawn", "failed"])
def test_withdrawn_job_leaves_nothing(fleet: Fleet, reason: str) -> None:
    fleet.assign(order("a", workload(_LONG)), order("b", workload(_LONG)), mode="spatial")
    fleet.until(lambda: fleet.reports(TaskEvaluated, "b"))
    command = released("n1", "a", "b", reason=reason).model_copy(update={"job_ids": ("a",)})
    fleet.send(command)
    fleet.until_over("a/1", "b/1")
    assert fleet.checkpoints("a") == []
    # The other one goes on from where it is.
    assert len(fleet.checkpoints("b")) == 1
    ends = [each.samples_done for each in fleet.reports(RunProgressed) if each.complete]
    assert ends[0] == 0 < ends[1]
