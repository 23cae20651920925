"""Preempted jobs resume from their checkpoint, or start from the beginning."""

import pytest

from schemas.fleet import RunFinished, RunProgressed, RunStarted
from tests.support.elastic_nodes import Fleet, workload
from tests.support.trained import Trained


def test_a_preempted_job_resumes_elsewhere_from_its_checkpoint(fleet: Fleet, alone: Trained) -> None:
    fleet.add("n1", checkpoint_s=0.05)
    work = workload()
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], work)
    fleet.until(fleet.has_trained("j"))
    # Only one of the nodes has received it so far: its workers stop the others.
    fleet.release("j", 1, ["n2"], "preempted")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    ends = fleet.reports(RunProgressed, "j")[-1], fleet.reports(RunProgressed, "j", "n1")[-1]
    assert ends[0].samples_done == ends[1].samples_done > 0
    assert f"1-{ends[0].samples_done}" in fleet.checkpoints("j")
    fleet.release("j", 1, ["n1"], "preempted")

    fleet.assign("j", 2, [("n2", 1)], work, resumes=True, resume_samples=ends[0].samples_done)
    fleet.until(fleet.is_over("j", "n2", generation=2))
    assert fleet.reports(RunStarted, "j", "n2")[-1].samples_done == ends[0].samples_done
    Trained.of(fleet, "j").assert_same_parameters(alone)
    assert fleet.checkpoints("j") == ["final"]


@pytest.mark.long
def test_a_job_without_checkpoints_starts_over(fleet: Fleet, alone: Trained) -> None:
    work = workload(keeps=False)
    fleet.assign("j", 1, [("n1", 1)], work)
    fleet.until(lambda: fleet.progress("j") > 0)
    fleet.release("j", 1, ["n1"], "preempted")
    fleet.until(fleet.is_over("j", "n1"))
    assert fleet.short_reports("j")[-1] == "n1 j/1 run.progressed 0 complete"
    assert fleet.checkpoints("j") == []
    fleet.assign("j", 2, [("n2", 1)], work, resumes=True)
    fleet.until(fleet.is_over("j", "n2", generation=2))
    assert [report.samples_done for report in fleet.reports(RunStarted, "j")] == [0, 0]
    Trained.of(fleet, "j").assert_like(alone)


def test_reports_count_what_survives_a_crash(fleet: Fleet) -> None:
    fleet.add("n3", checkpoint_s=0.1)
    work = workload(10**6)
    fleet.assign("j", 1, [("n3", 1)], work)
    fleet.until(lambda: len({report.samples_done for report in fleet.reports(RunProgressed, "j")}) > 3)
    for report in fleet.reports(RunProgressed, "j")[-1:]:
        assert f"1-{report.samples_done}" in fleet.checkpoints("j")
    fleet.release("j", 1, ["n3"], "node_lost")
    fleet.until(fleet.is_over("j", "n3"))
    kept = fleet.reports(RunProgressed, "j")[-1]
    assert kept.complete
    assert f"1-{kept.samples_done}" in fleet.checkpoints("j")


def test_nothing_is_kept_of_a_withdrawn_job(fleet: Fleet) -> None:
    work = workload(10**6)
    fleet.add("n3", checkpoint_s=0.1)
    fleet.assign("j", 1, [("n3", 1), ("n2", 1)], work)
    fleet.until(lambda: fleet.checkpoints("j"))
    fleet.release("j", 1, ["n3", "n2"], "withdrawn")
    fleet.until(fleet.is_over("j", "n3", "n2"))
    assert fleet.checkpoints("j") == []
    assert list((fleet.root / "state" / "c" / "meetings").glob("*")) == []


def test_restarted_job_ends_its_former_run(fleet: Fleet) -> None:
    work = workload(10**6)
    fleet.assign("j", 1, [("n1", 1)], work)
    fleet.until(fleet.has_started("j", 1, "n1"))
    old = fleet.pids("n1")
    fleet.assign("j", 2, [("n1", 1)], work, resumes=True)
    fleet.until(fleet.has_started("j", 2, "n1"))
    assert [line for line in fleet.short_reports("j") if "complete" in line or "started" in line] == [
        "n1 j/1 run.started 0",
        "n1 j/1 run.progressed 0 complete",
        "n1 j/2 run.started 0",
    ]
    assert set(old).isdisjoint(fleet.pids("n1"))


def test_a_finished_job_is_reported_again_without_training(fleet: Fleet) -> None:
    work = workload(8)
    fleet.assign("j", 1, [("n1", 1)], work)
    fleet.until(fleet.is_over("j", "n1"))
    # The report was lost, and the cell assigns the job again.
    fleet.assign("j", 2, [("n2", 1), ("n1", 1)], work, resumes=True)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    first, again = sorted(fleet.reports(RunFinished, "j"), key=lambda report: report.run_id)
    assert (first.node, again.node, again.run_id) == ("n1", "n2", "j/2")
    assert (first.loss, first.samples_done) == (again.loss, again.samples_done)
    assert fleet.short_reports("j")[-1] == "n2 j/2 run.finished 8"


def test_a_node_that_stops_checkpoints_and_reports(fleet: Fleet) -> None:
    fleet.add("n1", checkpoint_s=0.05)
    fleet.assign("j", 1, [("n1", 1)], workload(10**6))
    fleet.until(fleet.has_trained("j"))
    fleet.nodes["n1"].runner.close("node_stops")
    end = fleet.reports(RunProgressed, "j")[-1]
    assert end.complete
    assert f"1-{end.samples_done}" in fleet.checkpoints("j")
    assert fleet.nodes["n1"].runner.state() is None


def test_workers_wait_for_those_that_still_end(fleet: Fleet) -> None:
    fleet.nodes.clear()
    node = fleet.add("n1", gpus=1)
    fleet.assign("a", 1, [("n1", 1)], workload(10**6))
    fleet.until(fleet.has_started("a", 1, "n1"))
    fleet.assign("b", 1, [("n1", 1)], workload(8))
    assert len(fleet.pids("n1")) == 1
    fleet.release("a", 1, ["n1"], "preempted")
    fleet.until(fleet.is_over("b", "n1"))
    kinds = [f"{report.job_id} {report.TYPE.split('.')[2]}" for report in node.reports]
    assert kinds.index("b started") > max(place for place, kind in enumerate(kinds) if kind[0] == "a")
