"""Whatever a task raises, at whatever stage, fails that task alone; the others train on undisturbed."""

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from executors.lora import engine as engine_module
from executors.lora.fused_layers import SiteAdapter
from executors.lora.lora_task import TaskState
from executors.lora.resident import ResidentTask
from executors.lora.segment_products import Rows
from executors.lora.slots.checkpoints import (
    AdapterOutput,
    FinishedRun,
    PublishedAdapter,
    RunCheckpoints,
    SavedRun,
)
from executors.lora.task_files import ADAPTER_TENSORS
from schemas.fleet import RunFailed, RunFinished
from tests.support.executors import assignment, order

BAD = "bad"
SAMPLES = 24
FAILS_AFTER = 8
"""Samples, so that the faulty task has trained with the others before."""
STAGES = ("data", "begin", "forward", "backward", "update", "state")


class FaultyTask(ResidentTask):
    """A task that raises at one stage of a step, once it has trained for a while."""

    stage = ""
    error: Exception = ValueError()

    def _raise_at(self, stage: str) -> None:
        if (self.task.job_id, stage) == (BAD, self.stage) and self.samples_done >= FAILS_AFTER:
            raise self.error

    def next_micro_batch(self, tokenizer):
        self._raise_at("data")
        return super().next_micro_batch(tokenizer)

    def begin_step(self, tokens: int) -> None:
        self._raise_at("begin")
        super().begin_step(tokens)

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        self._raise_at("forward")
        adapter = super().site_adapter(site, rows)
        if self.stage == "backward":
            adapter.down.register_hook(lambda _: self._raise_at("backward"))
        return adapter

    def finish_step(self) -> None:
        self._raise_at("update")
        super().finish_step()

    def state(self) -> TaskState:
        self._raise_at("state")
        return super().state()


def adapters(bench, *job_ids: str) -> dict[str, dict[str, Tensor]]:
    """Return the adapters that jobs have published."""
    return {
        job_id: load_file(bench.root / "adapters" / "c" / "u" / job_id / ADAPTER_TENSORS)
        for job_id in job_ids
    }


def neighbours() -> list:
    return [order("first", SAMPLES, SAMPLES), order("last", SAMPLES, SAMPLES, seed=3, dropout=0.1)]


@pytest.fixture
def undisturbed(bench, tmp_path) -> dict[str, dict[str, Tensor]]:
    """The adapters of the neighbours, trained without the faulty task."""
    bench.carry_out(assignment(*neighbours()))
    found = adapters(bench, "first", "last")
    for folder in ("checkpoints", "adapters"):
        (tmp_path / folder).rename(tmp_path / f"{folder}-before")
    bench.reports.clear()
    return found


def check_only_the_faulty_task_failed(bench, undisturbed, error: str, permanent: bool) -> RunFailed:
    failed = bench.reports_on(BAD)[-1]
    assert isinstance(failed, RunFailed)
    assert error in failed.error
    assert failed.permanent == permanent
    assert [type(bench.reports_on(job_id)[-1]) for job_id in ("first", "last")] == [RunFinished] * 2
    for job_id, tensors in adapters(bench, "first", "last").items():
        torch.testing.assert_close(tensors, undisturbed[job_id], rtol=1e-5, atol=1e-7)
    return failed


ERRORS = {
    "TypeError": (TypeError("TextEncodeInput must be"), "TypeError: TextEncodeInput must be", True),
    "IndexError": (IndexError("index out of range in self"), "IndexError: index out of range in self", True),
    "KeyError": (KeyError("q"), "KeyError: 'q'", True),
    "ValueError": (ValueError("half a character"), "half a character", True),
    "surrogates": (ValueError("text \ud83d"), "text \\ud83d", True),
    "RuntimeError": (RuntimeError("shapes do not match"), "shapes do not match", False),
    "MemoryError": (MemoryError(), "MemoryError", False),
    "out of memory": (torch.OutOfMemoryError("no room"), "no room", False),
    "OSError": (OSError("input/output error"), "input/output error", False),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["TypeError", "RuntimeError"])
def test_task_raising_at_any_stage_fails_alone(
    bench, undisturbed, monkeypatch: pytest.MonkeyPatch, stage: str, name: str
) -> None:
    error, message, permanent = ERRORS[name]
    monkeypatch.setattr(FaultyTask, "stage", stage)
    monkeypatch.setattr(FaultyTask, "error", error)
    monkeypatch.setattr(engine_module, "ResidentTask", FaultyTask)
    bad = order(BAD, SAMPLES, SAMPLES, seed=9)
    first, last = neighbours()
    bench.carry_out(assignment(first, bad, last))
    failed = check_only_the_faulty_task_failed(bench, undisturbed, message, permanent)
    kept = bench.kept(BAD)
    assert failed.samples_done == (bench.saved(BAD).samples_done if kept else 0)


@pytest.mark.parametrize(("error", "message", "permanent"), ERRORS.values(), ids=ERRORS.keys())
def test_every_error_type_fails_its_task(
    bench, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, permanent: bool
) -> None:
    monkeypatch.setattr(FaultyTask, "stage", "data")
    monkeypatch.setattr(FaultyTask, "error", error)
    monkeypatch.setattr(engine_module, "ResidentTask", FaultyTask)
    bench.carry_out(assignment(order(BAD, SAMPLES, SAMPLES), order("good", 8)))
    failed = bench.reports_on(BAD)[-1]
    assert (failed.error, failed.permanent) == (message, permanent)
    assert bench.reports_on("good")[-1].samples_done == 8


class FaultyCheckpoints(RunCheckpoints):
    """A store that cannot encode the state of one task."""

    def save(self, run: SavedRun) -> None:
        if run.state.task.job_id == BAD:
            raise TypeError("not a tensor")
        super().save(run)


class FaultyConclusion(RunCheckpoints):
    """A store that cannot record the end of one task."""

    def finish(self, run: FinishedRun) -> None:
        if run.task.job_id == BAD:
            raise KeyError("final")
        super().finish(run)


class FaultyOutput(AdapterOutput):
    """An output that cannot encode the adapter of one task."""

    def publish(self, state: TaskState, user: str) -> PublishedAdapter:
        if state.task.job_id == BAD:
            raise TypeError("not a tensor")
        return super().publish(state, user)


@pytest.mark.parametrize(
    ("part", "make", "error"),
    [
        ("checkpoints", lambda b: FaultyCheckpoints(b.root / "checkpoints", b.base, 4), "not a tensor"),
        ("checkpoints", lambda b: FaultyConclusion(b.root / "checkpoints", b.base, 4), "KeyError: 'final'"),
        ("adapters", lambda b: FaultyOutput(b.root / "adapters", "c", b.base), "not a tensor"),
    ],
    ids=["checkpoint", "conclusion", "adapter"],
)
def test_a_task_that_cannot_be_written_fails_alone(
    bench, undisturbed, part: str, make: Callable[..., object], error: str
) -> None:
    first, last = neighbours()
    workshop = bench.workshop(**{part: make(bench)})
    bench.carry_out(assignment(first, order(BAD, SAMPLES, SAMPLES, seed=9), last), workshop)
    check_only_the_faulty_task_failed(bench, undisturbed, error, permanent=True)
    assert workshop.engine.job_ids == ()


def test_joint_failures_keep_own_reasons(bench, monkeypatch: pytest.MonkeyPatch) -> None:

    class Unlucky(ResidentTask):
        def finish_step(self) -> None:
            if self.task.job_id != "good":
                raise LookupError(self.task.job_id)
            super().finish_step()

    monkeypatch.setattr(engine_module, "ResidentTask", Unlucky)
    jobs = [order(job_id, 8, seed=seed) for seed, job_id in enumerate(("a", "good", "b"))]
    bench.carry_out(assignment(*jobs))
    for job_id in ("a", "b"):
        failed = bench.reports_on(job_id)[-1]
        assert failed.error == f"the update of the adapter has failed: LookupError: {job_id}"
        assert (failed.permanent, failed.samples_done) == (True, 0)
    assert bench.reports_on("good")[-1].samples_done == 8
