"""A task that fails fails alone, and its report states whether another node may succeed."""

import dataclasses
import os
import re
from collections.abc import Callable, Sequence

import pytest
import torch

from executors.lora.engine import FusedEngine
from executors.lora.faults import UpdateError, is_permanent
from executors.lora.lora_task import TaskState
from executors.lora.slots.checkpoints import RunProgress, SavedRun
from schemas.fleet import RunFailed, RunStarted
from tests.support.executors import assignment, order, write_dataset

SameTraining = Callable[[TaskState, TaskState], None]

UNFIT = {
    "a missing dataset": (order("bad", 8, dataset="none.jsonl"), "no such dataset"),
    "a link out of the root": (order("bad", 8, dataset="link.jsonl"), "leads out"),
    "a folder for a dataset": (order("bad", 8, dataset="folder"), "not a regular file"),
    "a bad line": (order("bad", 8, dataset="broken.jsonl"), "line 2"),
    "half an emoji": (order("bad", 8, dataset="emoji.jsonl"), "emoji.jsonl, line 2: text: has half of a"),
    "an unknown layer": (order("bad", 8, target_modules=("nothing",)), "no layer is called"),
    "sequences beyond the model's": (order("bad", 8, sequence_length=4_096), "4096 tokens"),
}


@pytest.fixture
def bad_data(bench) -> None:
    (bench.datasets / "link.jsonl").symlink_to("/etc/hostname")
    (bench.datasets / "folder").mkdir()
    (bench.datasets / "emoji.jsonl").write_text('{"text": "fine"}\n{"text": "Thanks a lot \\ud83d"}\n')
    (bench.datasets / "broken.jsonl").write_text('{"text": "fine"}\nnot so fine\n')


@pytest.mark.usefixtures("bad_data")
@pytest.mark.parametrize(("bad", "error"), UNFIT.values(), ids=UNFIT.keys())
def test_impossible_run_fails_permanently_and_other_trains(bench, bad, error: str) -> None:
    runner = bench.carry_out(assignment(bad, order("good", 8)))
    (failed,) = bench.reports_on("bad")
    assert isinstance(failed, RunFailed)
    assert (failed.permanent, failed.samples_done) == (True, 0)
    assert error in failed.error
    assert bench.reports_on("good")[-1].samples_done == 8
    assert runner.over == {"bad", "good"}


def test_job_with_changed_settings_or_data_fails(bench) -> None:
    bench.carry_out(assignment(order("a", 8), order("b", 8, dataset="pairs.jsonl")))
    write_dataset(bench.datasets / "pairs.jsonl", seed=6)
    bench.reports.clear()
    bench.carry_out(assignment(order("a", 8, rank=2, resume=8), order("b", 8, resume=8), slot=1))
    (a,), (b,) = bench.reports_on("a"), bench.reports_on("b")
    assert a.permanent
    assert "of another task" in a.error
    assert b.permanent
    assert "has changed since" in b.error
    assert a.samples_done == b.samples_done == 8


def test_wrong_base_model_fails_runs_not_permanently(bench) -> None:
    bench.carry_out(assignment(order("j", 8), base_model="other"))
    (failed,) = bench.reports
    assert not failed.permanent
    assert "base model tiny, not other" in failed.error


def test_diverging_run_leaves_other_unchanged(bench, assert_same_training: SameTraining) -> None:
    wild, calm = order("wild", 8), order("calm", 24, seed=1)
    state, loss = bench.trained_alone(wild, 8)
    state = dataclasses.replace(state, parameters=state.parameters * float("nan"))
    bench.workshop().checkpoints.save(SavedRun(0, state, RunProgress(base_samples=0, loss=loss)))
    bench.carry_out(assignment(wild, calm, slot=1))
    started, failed = bench.reports_on("wild")
    assert started.samples_done == failed.samples_done == 8
    assert failed.permanent
    assert failed.error == "the loss is nan: the training diverged"
    assert_same_training(bench.saved("calm"), bench.trained_alone(calm, 24)[0])


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "alone"])
def test_overflowing_gradient_fails_only_its_run(
    bench, assert_same_training: SameTraining, fused: bool
) -> None:
    wild, calm = order("wild", 8), order("calm", 24, seed=1)
    state, loss = bench.trained_alone(wild, 8)
    # A down-projection of zeros: the huge up-projection adds nothing to the output, and all to the gradient.
    layout = bench.base.layout(state.task)
    for factor in layout:
        factor.view(state.parameters).fill_(0.0 if factor.role == "lora_A" else 3e38)
    bench.workshop().checkpoints.save(SavedRun(0, state, RunProgress(base_samples=0, loss=loss)))
    bench.carry_out(assignment(wild, *([calm] if fused else []), slot=1))
    failed = bench.reports_on("wild")[-1]
    assert (failed.permanent, failed.samples_done) == (True, 8)
    assert re.fullmatch(r"the gradient's norm is (inf|nan): the training diverged", failed.error)
    assert torch.equal(bench.saved("wild").parameters, state.parameters)
    if fused:
        assert_same_training(bench.saved("calm"), bench.trained_alone(calm, 24)[0])


def test_truncated_dataset_fails_only_its_run(bench, assert_same_training: SameTraining) -> None:
    write_dataset(bench.datasets / "cut.jsonl")
    cut, sound = order("cut", 400, dataset="cut.jsonl"), order("sound", 32, seed=1)
    runner = bench.runner(assignment(cut, sound))
    for _ in range(4):
        runner.advance()
    os.truncate(bench.datasets / "cut.jsonl", 10)
    while runner.advance() == "working":
        pass
    failed = bench.reports_on("cut")[-1]
    assert isinstance(failed, RunFailed)
    assert failed.permanent
    # What was reported as done is what the last checkpoint holds.
    assert failed.samples_done == bench.saved("cut").samples_done == 12
    assert_same_training(bench.saved("sound"), bench.trained_alone(sound, 32)[0])


class NarrowEngine(FusedEngine):
    """An engine on a device with room for the step of one task at a time."""

    fused_steps = 0

    def step(self, job_ids: Sequence[str] | None = None) -> dict[str, float]:
        if len(job_ids) > 1:
            self.fused_steps += 1
            raise torch.OutOfMemoryError("no room")
        return super().step(job_ids)


def test_runs_too_large_together_alternate(bench) -> None:
    workshop = bench.workshop(NarrowEngine)
    jobs = [order("a", 16), order("b", 16, seed=1)]
    bench.carry_out(assignment(*jobs), workshop)
    for job in jobs:
        state, loss = bench.trained_alone(job, 16)
        assert torch.equal(bench.saved(job.job_id).parameters, state.parameters)
        assert bench.reports_on(job.job_id)[-1].loss == loss
    assert workshop.engine.fused_steps == 1


class FullEngine(FusedEngine):
    """An engine whose device has no room for more than two steps' worth."""

    def step(self, job_ids: Sequence[str] | None = None) -> dict[str, float]:
        if self.samples_done(job_ids[0]) >= 8:
            raise torch.OutOfMemoryError("no room")
        return super().step(job_ids)


def test_progress_is_saved_before_local_failure(bench) -> None:
    bench.carry_out(assignment(order("j", 100)), bench.workshop(FullEngine))
    failed = bench.reports[-1]
    assert (failed.permanent, failed.samples_done) == (False, 8)
    bench.carry_out(assignment(order("j", 8, resume=8), node="n2", slot=1))
    assert bench.reports[-1].samples_done == 16


class LostDevice(FusedEngine):
    """An engine whose device has crashed."""

    def step(self, job_ids: Sequence[str] | None = None) -> dict[str, float]:
        raise torch.AcceleratorError("device lost")


@pytest.mark.parametrize("runs", [1, 2])
def test_no_run_is_blamed_for_a_lost_device(bench, runs: int) -> None:
    jobs = [order(f"j{i}", 8) for i in range(runs)]
    runner = bench.runner(assignment(*jobs), bench.workshop(LostDevice))
    with pytest.raises(torch.AcceleratorError, match="device lost"):
        runner.advance()
    assert all(isinstance(event, RunStarted) for event in bench.reports)


def test_a_replaced_writer_stops_without_a_word(bench, caplog: pytest.LogCaptureFixture) -> None:
    stale = bench.runner(assignment(order("j", 100), order("other", 24, seed=1), length_s=1_000))
    stale.advance()
    bench.carry_out(assignment(order("j", 8), node="n2", slot=1), bench.workshop())
    with caplog.at_level("INFO"):
        while stale.advance() == "working":
            pass
    assert [event.node for event in bench.reports_on("j")] == ["n1", "n2", "n2"]
    assert "run replaced job=j run=0/j" in caplog.text
    assert bench.reports_on("other")[-1].samples_done == 24
    assert bench.saved("j").samples_done == 8


def test_order_of_replaced_slot_is_not_begun(bench) -> None:
    bench.carry_out(assignment(order("j", 8), slot=5))
    bench.reports.clear()
    assert bench.carry_out(assignment(order("j", 8), slot=4)).over == {"j"}
    assert bench.reports == []


def test_failing_store_costs_run_only_here(bench) -> None:
    runner = bench.runner(assignment(order("j", 100), order("good", 24, seed=1)))
    runner.advance()
    (bench.root / "checkpoints").mkdir()
    (bench.root / "checkpoints" / "j").write_text("in the way")
    while runner.advance() == "working":
        pass
    failed = bench.reports_on("j")[-1]
    assert isinstance(failed, RunFailed)
    assert (failed.permanent, failed.samples_done) == (False, 0)
    assert bench.reports_on("good")[-1].samples_done == 24


def test_unwritable_output_costs_run_only_here(bench) -> None:
    (bench.root / "adapters").write_text("in the way")
    bench.carry_out(assignment(order("j", 8, work=8)))
    failed = bench.reports[-1]
    assert (failed.permanent, failed.samples_done) == (False, 8)
    assert bench.saved("j").samples_done == 8


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (torch.OutOfMemoryError("full"), False),
        (MemoryError(), False),
        (OSError("disk"), False),
        (RuntimeError("shapes"), False),
        (ValueError("unfit"), True),
        (TypeError("not a text"), True),
        (IndexError("out of range"), True),
        (UpdateError(MemoryError()), False),
        (UpdateError(TypeError("not a tensor")), True),
    ],
)
def test_only_what_lies_in_the_task_is_permanent(error: Exception, permanent: bool) -> None:
    assert is_permanent(error) == permanent
