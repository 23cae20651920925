"""A node accepts valid commands, and refuses those of an earlier process with reports. No worker is
started."""

from pathlib import Path

import pytest

from executors.elastic import ElasticTraining
from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.node.runner import Objection, UnfitError
from schemas.fleet import RunFailed, RunProgressed
from tests.support.elastic_nodes import Fleet, assigned, released, workload
from tests.support.nodes import Members, short


@pytest.fixture
def idle(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, ElasticSettings(model_root=tmp_path, dataset_root=tmp_path))
    fleet.add("n1")
    return fleet


@pytest.fixture
def runner(idle: Fleet) -> ElasticRunner:
    return idle.nodes["n1"].runner


@pytest.mark.parametrize(
    ("members", "fields", "detail"),
    [
        ([("n2", 1)], {}, "n1 is not among the members n2"),
        ([("n1", 1), ("n1", 1)], {}, "a node is among the members twice"),
        ([("n1", 3)], {}, "ranks here need 3 GPUs, the node has 2"),
        ([("n1", 1), ("n2", 1)], {"gpus_per_worker": 3}, "ranks here need 3 GPUs, the node has 2"),
    ],
)
def test_what_no_cell_sends_is_impossible(
    runner: ElasticRunner, members: Members, fields: dict[str, object], detail: str
) -> None:
    command = assigned("n1", "j", 1, members, workload(**fields))
    assert runner.validate(command) == Objection("impossible", detail)


def test_more_workers_than_the_maximum_are_possible(runner: ElasticRunner) -> None:
    # A job's bounds count training servers' workers; loaned servers may be slower, and it has more of theirs.
    assert runner.validate(assigned("n1", "j", 1, [("n2", 9), ("n1", 1)], workload())) is None


def test_equal_generation_is_out_of_date(runner: ElasticRunner) -> None:
    work = workload()
    runner.apply(assigned("n1", "j", 2, [("n1", 1)], work))
    late = Objection("out_of_date", "j is in generation 2")
    assert runner.validate(assigned("n1", "j", 2, [("n1", 1)], work)) is None, "the same order once more"
    assert runner.validate(assigned("n1", "j", 2, [("n1", 1)], work, resume_samples=8)) == late
    assert runner.validate(released("n1", "j", 1)) == late
    assert runner.validate(assigned("n1", "j", 3, [("n1", 1)], work)) is None
    assert runner.validate(released("n1", "j", 2)) is None


def test_runs_of_killed_process_are_reported_over(idle: Fleet, runner: ElasticRunner) -> None:
    work = workload()
    runner.apply(assigned("n1", "fails", 1, [("n1", 1)], work, resume_samples=40))
    runner.apply(assigned("n1", "starts-over", 1, [("n1", 1)], workload(keeps=False)))
    runner.apply(assigned("n1", "ends", 1, [("n1", 1)], work, resume_samples=80))
    runner.apply(released("n1", "ends", 1, "preempted"))
    state = runner.state()
    again = idle.add("n1")
    again.runner.restore(state)
    assert again.runner.state() == state
    assert again.runner.advance() == "idle"
    why = "permanent=False the node was started again, and its ranks ended with the process before"
    assert sorted(map(short, again.reports)) == [
        "n1 ends/1 run.progressed 80 complete",
        f"n1 fails/1 run.failed 40 {why}",
        f"n1 starts-over/1 run.failed 0 {why}",
    ]
    assert {type(report) for report in again.reports} == {RunFailed, RunProgressed}
    assert again.runner.state() is None
    again.runner.advance()
    assert len(again.reports) == 3


def test_unstarted_run_keeps_checkpoints_of_job(idle: Fleet, runner: ElasticRunner) -> None:
    for job_id, keeps in (("keeps", True), ("starts-over", False)):
        work = workload(keeps=keeps)
        runner.apply(assigned("n1", job_id, 1, [("n1", 1)], work))
        runner.apply(assigned("n1", job_id, 2, [("n1", 1)], work, resumes=True, resume_samples=40))
    again = idle.add("n1")
    again.runner.restore(runner.state())
    again.runner.advance()
    assert [line.partition(" permanent")[0] for line in map(short, again.reports)] == [
        "n1 keeps/1 run.progressed 0 complete",
        "n1 keeps/2 run.failed 40",
        "n1 starts-over/1 run.progressed 0 complete",
        "n1 starts-over/2 run.failed 0",
    ]


def test_a_state_of_another_runner_is_refused(runner: ElasticRunner) -> None:
    with pytest.raises(ValueError, match="valid array"):
        runner.restore({"slot": 3})


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("MILLRACE_MODEL_ROOT", "/nowhere", "model root /nowhere is not a folder"),
        ("MILLRACE_DATASET_ROOT", "/nowhere", "dataset root /nowhere is not a folder"),
        ("MILLRACE_RANK_HOST", "192.0.2.1", "no network interface here has the address 192.0.2.1"),
    ],
)
def test_impossible_assignment_is_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    monkeypatch.setenv("MILLRACE_MODEL_ROOT", str(tmp_path))
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path))
    assert {command.RUNNER for command in ElasticTraining().commands} == {"elastic"}
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnfitError, match=why):
        ElasticTraining()
