"""Tasks join, leave and share the engine without touching each other."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LoraTask
from executors.lora.shared_base import SharedBase

MakeTask = Callable[..., LoraTask]


def test_losses_fall_over_a_few_hundred_samples(engine: FusedEngine, make_task: MakeTask) -> None:
    engine.attach(make_task("text", batch_size=8, dropout=0.05))
    engine.attach(make_task("pairs", batch_size=4, dataset="ragged.jsonl", rank=8, seed=1))
    history = [engine.step() for _ in range(50)]
    for name, samples in (("text", 400), ("pairs", 200)):
        assert engine.samples_done(name) == samples
        first = sum(losses[name] for losses in history[:5]) / 5
        last = sum(losses[name] for losses in history[-5:]) / 5
        assert last < 0.9 * first


def test_an_idle_adapter_keeps_every_byte(engine: FusedEngine, make_task: MakeTask) -> None:
    engine.attach(make_task("idle", weight_decay=0.1, dropout=0.1))
    engine.attach(make_task("busy", seed=1))
    engine.step()
    before = engine.state("idle")
    for _ in range(3):
        engine.step(["busy"])
    after = engine.state("idle")
    for name in ("parameters", "first_moment", "second_moment"):
        assert torch.equal(getattr(after, name), getattr(before, name))
    assert (after.cursor, after.samples_done) == (before.cursor, 2)
    assert engine.samples_done("busy") == 8


def test_the_base_keeps_every_byte(base: SharedBase, engine: FusedEngine, make_task: MakeTask) -> None:
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    engine.attach(make_task("job", weight_decay=0.1))
    engine.step()
    for name, tensor in base.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("dataset", ["long.jsonl", "ragged.jsonl"])
def test_suspended_tasks_resume_in_other_order(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask, dataset: str
) -> None:
    tasks = [make_task(f"job-{k}", seed=k, rank=3 + k, dropout=0.2, dataset=dataset) for k in range(3)]
    straight = FusedEngine(base, datasets)
    for task in tasks:
        straight.attach(task)
    expected = [straight.step() for _ in range(6)]

    engine = FusedEngine(base, datasets)
    for task in tasks:
        engine.attach(task)
    losses = [engine.step() for _ in range(2)]
    parked = {task.job_id: engine.detach(task.job_id) for task in tasks}
    engine.attach(tasks[2], parked["job-2"])
    engine.attach(tasks[0], parked["job-0"])
    alone = [engine.step() for _ in range(2)]
    engine.attach(tasks[1], parked["job-1"])
    catching_up = [engine.step(["job-1"]) for _ in range(2)]
    losses += [a | b for a, b in zip(alone, catching_up, strict=True)]
    losses += [engine.step(["job-1", "job-2", "job-0"]) for _ in range(2)]

    for got, wanted in zip(losses, expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-4)


def test_resume_in_same_batch_is_bit_exact(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    tasks = [make_task("a", dropout=0.3), make_task("b", seed=1, dataset="ragged.jsonl")]
    engine = FusedEngine(base, datasets)
    for task in tasks:
        engine.attach(task)
    engine.step()
    states = {task.job_id: engine.state(task.job_id) for task in tasks}
    expected = [engine.step() for _ in range(3)]

    resumed = FusedEngine(base, datasets)
    for task in tasks:
        resumed.attach(task, states[task.job_id])
    assert [resumed.step() for _ in range(3)] == expected
    for task in tasks:
        assert torch.equal(resumed.state(task.job_id).parameters, engine.state(task.job_id).parameters)


def test_dropout_depends_on_task_and_step(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    def losses(dropout: float, company: bool) -> list[float]:
        engine = FusedEngine(base, datasets)
        if company:
            engine.attach(make_task("other", seed=9, dropout=0.5, rank=3))
        engine.attach(make_task("job", dropout=dropout, batch_size=24, alpha=256.0))
        return [engine.step()["job"] for _ in range(3)]

    assert losses(0.5, company=True) == pytest.approx(losses(0.5, company=False), rel=1e-4)
    assert losses(0.5, company=False)[1:] != pytest.approx(losses(0.0, company=False)[1:], rel=1e-3)


def test_the_last_micro_batch_stops_at_the_total(engine: FusedEngine, make_task: MakeTask) -> None:
    engine.attach(make_task("job", batch_size=4, total_samples=6))
    engine.step()
    assert not engine.state("job").finished
    engine.step()
    assert engine.samples_done("job") == 6
    assert engine.state("job").finished
    with pytest.raises(ValueError, match="used all its samples"):
        engine.step()


def test_oversized_tasks_are_refused_without_trace(engine: FusedEngine, make_task: MakeTask) -> None:
    with pytest.raises(ValueError, match=r"no layer is called 'qkv'; the base model has down_proj"):
        engine.attach(make_task("job", target_modules=("qkv",)))
    with pytest.raises(ValueError, match="200 tokens, but the base model takes 128"):
        engine.attach(make_task("job", sequence_length=200))
    assert engine.job_ids == ()
    engine.attach(make_task("job"))
    with pytest.raises(ValueError, match="already attached"):
        engine.attach(make_task("job"))
    state = engine.detach("job")
    with pytest.raises(ValueError, match="of another task, or of other settings"):
        engine.attach(make_task("job", rank=5), state)
    with pytest.raises(KeyError):
        engine.step(["job"])
    with pytest.raises(ValueError, match="needs tasks"):
        engine.step()


def test_a_task_does_not_resume_on_changed_data(
    base: SharedBase, make_task: MakeTask, tmp_path: Path
) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "def one(): return 1"}\n')
    engine = FusedEngine(base, DatasetRoot(tmp_path))
    task = make_task("job", dataset="data.jsonl")
    engine.attach(task)
    state = engine.detach("job")
    (tmp_path / "data.jsonl").write_text('{"text": "def two(): return 2"}\n')
    with pytest.raises(ValueError, match=r"data\.jsonl has changed since"):
        engine.attach(task, state)
    assert engine.job_ids == ()


@pytest.mark.parametrize("dataset", ["long.jsonl", "ragged.jsonl"])
def test_bfloat16_autocast_trains_float32_adapters_close_to_float32(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask, dataset: str
) -> None:
    def train() -> list[dict[str, float]]:
        engine = FusedEngine(base, datasets)
        for k in range(3):
            engine.attach(make_task(f"job-{k}", seed=k, dropout=0.1, dataset=dataset))
        history = [engine.step() for _ in range(4)]
        assert engine.state("job-0").parameters.dtype == torch.float32
        return history

    exact = train()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = train()
    assert rounded != exact
    for got, wanted in zip(rounded, exact, strict=True):
        assert got == pytest.approx(wanted, rel=0.03)


FREED_MEMORY = """
import resource

import torch

from executors.lora.engine import keep_freed_memory


def faults_of_five_tensors():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


keep_freed_memory()
faults_of_five_tensors()
print(faults_of_five_tensors())
"""
"""Program of a process of its own: the heap of this one depends on the tests before."""


def test_large_tensors_reuse_memory() -> None:
    program = [sys.executable, "-P", "-c", FREED_MEMORY]
    faults = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    # A tensor has 16,384 pages.
    assert int(faults.stdout) < 1_000
