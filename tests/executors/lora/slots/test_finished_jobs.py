"""The store keeps enough of a finished job to report it again, whenever its process is killed."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executors.lora.slots.checkpoints import AdapterOutput
from executors.lora.slots.slot_runs import SlotRuns
from executors.node.checkpoints import FINAL, CheckpointStore
from schemas.fleet import RunFailed, RunFinished, RunStarted
from tests.support.executors import assignment, order

JOB = order("j", quota=100, work=14)


def test_finished_job_leaves_adapter_without_checkpoint(bench) -> None:
    bench.carry_out(assignment(JOB))
    assert isinstance(bench.reports[-1], RunFinished)
    assert bench.kept("j") == [FINAL]


def test_repeated_finished_job_is_reported_without_training(bench) -> None:
    bench.carry_out(assignment(JOB))
    finished = bench.reports[-1]
    (bench.datasets / "pairs.jsonl").unlink()
    bench.carry_out(assignment(JOB.model_copy(update={"resume_samples": 14}), node="n2", slot=3))
    place = {"node": "n2", "run_id": "3/j"}
    assert bench.reports[2:] == [
        RunStarted(cell="c", job_id="j", samples_done=14, **place),
        finished.model_copy(update=place),
    ]


def test_replaced_node_overwrites_no_finished_job(bench, caplog: pytest.LogCaptureFixture) -> None:
    stale = bench.runner(assignment(JOB))
    stale.advance()
    bench.carry_out(assignment(JOB, node="n2", slot=1), bench.workshop())
    shutil.rmtree(bench.root / "adapters" / "c" / "u" / "j")
    with caplog.at_level("INFO"):
        while stale.advance() == "working":
            pass
    assert "run replaced job=j run=0/j" in caplog.text
    assert [event.node for event in bench.reports_on("j")] == ["n1", "n2", "n2"]
    assert bench.kept("j") == [FINAL]
    assert not (bench.root / "adapters" / "c" / "u" / "j").exists()


def test_other_job_under_finished_id_fails(bench) -> None:
    bench.carry_out(assignment(JOB))
    bench.carry_out(assignment(order("j", quota=100, work=14, rank=2), slot=1))
    failed = bench.reports[-1]
    assert isinstance(failed, RunFailed)
    assert failed.permanent
    assert failed.error.endswith("of a finished job is of another workload")


def test_adapter_of_finished_job_stays_its_users(bench) -> None:
    bench.carry_out(assignment(JOB))
    before = {path: path.read_bytes() for path in (bench.root / "adapters").rglob("*.safetensors")}
    bench.carry_out(assignment(JOB.model_copy(update={"user": "v"}), slot=1))
    failed = bench.reports[-1]
    assert isinstance(failed, RunFailed)
    assert failed.permanent
    assert failed.error.endswith("of a finished job is of c/u/j, not c/v/j")
    assert before == {path: path.read_bytes() for path in (bench.root / "adapters").rglob("*.safetensors")}


def test_of_a_cancelled_job_nothing_is_kept(bench) -> None:
    bench.carry_out(assignment(order("j", 8)))
    runner = bench.runner(assignment(order("j", 100, resume=8), slot=1))
    runner.advance()
    assert bench.kept("j")
    runner.cancel("j")
    assert bench.kept("j") == []


def test_job_cancelled_in_last_step_publishes_nothing(bench) -> None:
    runner = bench.runner(assignment(JOB))
    for _ in range(4):
        assert runner.advance() == "working"
    assert bench.kept("j") == ["0-12"]
    # The last step is done, and the commands that came meanwhile are read before the run ends.
    runner.cancel("j")
    assert runner.advance() == "idle"
    assert [type(event) for event in bench.reports] == [RunStarted]
    assert bench.kept("j") == []
    assert not (bench.root / "adapters" / "c" / "u" / "j").exists()


@pytest.mark.parametrize(("late_s", "publishes"), [(150.0, True), (200.0, False)])
def test_run_publishes_only_while_slot_counts(bench, late_s: float, publishes: bool) -> None:
    runner = bench.runner(assignment(JOB))
    for _ in range(4):
        runner.advance()
    bench.clock.now_s += late_s
    assert runner.advance() == "idle"
    ended = bench.reports[-1]
    assert isinstance(ended, RunFinished) is publishes
    assert ended.samples_done == 14
    assert (bench.root / "adapters" / "c" / "u" / "j").exists() is publishes
    if not publishes:
        assert ended.complete
        # Whoever is given the job's rest finds it done.
        bench.carry_out(assignment(JOB.model_copy(update={"resume_samples": 13}), slot=3, start_s=1_300.0))
        assert isinstance(bench.reports[-1], RunFinished)


@pytest.mark.parametrize(("slot", "withdrawn"), [(1, True), (2, True), (3, False)])
def test_adapter_crossing_cancellation_is_withdrawn(bench, slot: int, withdrawn: bool) -> None:
    bench.carry_out(assignment(JOB))
    adapter = bench.root / "adapters" / "c" / "u" / "j"
    assert adapter.exists()
    later = bench.runner(assignment(order("other", 8), slot=slot))
    later.cancel("j")
    assert adapter.exists() is not withdrawn


def kill_after(owner: type, method: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Have this process killed as soon as a method has returned."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        undisturbed = getattr(owner, method)

        def killed(*arguments: object) -> None:
            undisturbed(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(owner, method, killed)

    return patch


def kill_at_the_first_removal_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, **_: object) -> None:
        if path.parent.name == "j" and path.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(shutil, "rmtree", killed)


KILLS = {
    "the adapter is written": (kill_after(AdapterOutput, "publish"), ["0-14"]),
    "the record is written": (
        kill_at_the_first_removal_of_a_checkpoint,
        ["0-14", FINAL],
    ),
    "the checkpoints are removed": (kill_after(CheckpointStore, "conclude"), [FINAL]),
    "the job is off the device": (kill_after(SlotRuns, "_drop"), [FINAL]),
}


@pytest.mark.parametrize(("kill", "left"), KILLS.values(), ids=KILLS.keys())
def test_a_process_killed_when(
    bench, monkeypatch: pytest.MonkeyPatch, kill: Callable[[pytest.MonkeyPatch], None], left: list[str]
) -> None:
    with monkeypatch.context() as before_the_end:
        # At its goal and not yet at its end, so that the process to be killed has nothing left to train.
        before_the_end.setattr(SlotRuns, "_finish", lambda *_: None)
        runner = bench.runner(assignment(JOB))
        for _ in range(5):
            runner.advance()
    assert bench.kept("j")[-1] == "0-14"
    pid = os.fork()
    if pid == 0:
        kill(monkeypatch)
        bench.runner(assignment(JOB)).advance()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert [name for name in bench.kept("j") if name != "0-12"] == left
    bench.reports.clear()
    bench.carry_out(assignment(JOB))
    state, loss = bench.trained_alone(JOB, 14)
    assert [type(event) for event in bench.reports] == [RunStarted, RunFinished]
    assert (bench.reports[1].samples_done, bench.reports[1].loss) == (14, loss)
    assert torch.equal(bench.adapter("j"), state.parameters)
    assert bench.kept("j") == [FINAL]
