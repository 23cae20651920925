"""On a GPU, the engine trains in bfloat16, with parked state in pinned memory that a CPU can resume from."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LLAMA_TARGET_MODULES, LoraTask
from executors.lora.shared_base import SharedBase
from schemas.cells import BaseDimensions
from schemas.lora import LoraHyperparameters
from schemas.lora_commands import MEMORY_TOLERANCE_GIB
from solvers.auction.market.demand import least_memory_gib

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

MakeTask = Callable[..., LoraTask]


@pytest.fixture(scope="module")
def cuda_base(llama_directory: Path) -> SharedBase:
    return load_base(llama_directory, "cuda")


@pytest.mark.parametrize("dataset", ["long.jsonl", "ragged.jsonl"])
def test_fused_tasks_lose_what_each_loses_alone(
    cuda_base: SharedBase, datasets: DatasetRoot, make_task: MakeTask, dataset: str
) -> None:
    tasks = [make_task(f"job-{k}", seed=k, rank=3 + k, dataset=dataset) for k in range(3)]
    fused = FusedEngine(cuda_base, datasets)
    for task in tasks:
        fused.attach(task)
    together = [fused.step() for _ in range(5)]
    for task in tasks:
        alone = FusedEngine(cuda_base, datasets)
        alone.attach(task)
        losses = [alone.step()[task.job_id] for _ in range(5)]
        # bfloat16 keeps eight bits.
        assert [step[task.job_id] for step in together] == pytest.approx(losses, rel=2e-2)


def test_losses_fall_on_the_gpu(cuda_base: SharedBase, datasets: DatasetRoot, make_task: MakeTask) -> None:
    engine = FusedEngine(cuda_base, datasets)
    engine.attach(make_task("job", batch_size=8))
    losses = [engine.step()["job"] for _ in range(50)]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_task_parked_on_gpu_resumes_on_both(
    cuda_base: SharedBase, base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    task = make_task("job")
    engine = FusedEngine(cuda_base, datasets)
    engine.attach(task)
    for _ in range(3):
        engine.step()
    parked = engine.detach("job")
    assert parked.parameters.device.type == "cpu"
    assert parked.parameters.is_pinned()

    engine.attach(task, parked)
    on_gpu = engine.step()["job"]
    on_cpu = FusedEngine(base, datasets)
    on_cpu.attach(task, parked)

    assert on_cpu.samples_done("job") == parked.samples_done
    assert on_cpu.step()["job"] == pytest.approx(on_gpu, rel=5e-2)


def test_equal_steps_take_equal_memory_on_cuda(
    cuda_base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    shape = {"batch_size": 8, "sequence_length": 64, "target_modules": LLAMA_TARGET_MODULES}
    engine = FusedEngine(cuda_base, datasets)
    engine.attach(make_task("other", rank=16, batch_size=16))
    engine.attach(make_task("j", rank=8, **shape))
    taken = []
    for _ in range(4):
        with engine.measured("j") as measured:
            engine.step(["j"])
        taken.append(measured.gib)
    config = cuda_base.model.config
    dimensions = BaseDimensions(
        hidden_features=config.hidden_size,
        intermediate_features=config.intermediate_size,
        key_value_features=config.hidden_size,
        layers=config.num_hidden_layers,
        vocabulary_size=config.vocab_size,
    )
    least_gib = least_memory_gib(LoraHyperparameters(rank=8, **shape), dimensions)
    assert least_gib <= min(taken)
    assert max(taken) - min(taken) <= MEMORY_TOLERANCE_GIB
