"""One task's weights help another, on the default base model and text of the standard library."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from executors.lora.base_model import load_base
from executors.lora.lora_task import AdapterState
from executors.lora.shared_base import SharedBase
from executors.tuner.checkpoints import fresh_from
from executors.tuner.settings import TunerSettings
from executors.tuner.training import Sample, Trainer, new_adapter
from infra.demo.data import pieces, write_task
from schemas.merging.commands import TransferMode
from schemas.merging.workload import TuningWorkload
from tests.support.nodes import CELL
from tests.support.tuner_nodes import assigned, order, workload
from tests.support.tuner_tasks import LoneWorker, open_trainer

_STEPS = 12


@pytest.fixture(scope="module")
def default_base() -> SharedBase:
    return load_base()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts of the tables of character sets, and modules that are programs."""
    folder = tmp_path_factory.mktemp("library")
    tables = pieces(["encodings/cp*.py", "encodings/iso8859*.py"], seed=1)
    write_task(folder, "target", tables[:120], held_back=40)
    write_task(folder, "related", tables[200:500], held_back=20)
    programs = pieces(["asyncio/*.py", "unittest/*.py"], seed=2)
    write_task(folder, "unrelated", programs[:300], held_back=20)
    return folder


@pytest.fixture
def teacher(default_base: SharedBase, tasks: Path, tmp_path: Path) -> LoneWorker:
    return LoneWorker(default_base, tmp_path, TunerSettings(dataset_root=tasks, evaluation_share=0.0))


def job(name: str, steps: int) -> TuningWorkload:
    return workload(
        steps,
        dataset=f"{name}.jsonl",
        validation=f"{name}-validation.jsonl",
        hyperparameters={"batch_size": 8, "sequence_length": 64, "learning_rate": 2e-3},
    )


def validation_loss(worker: LoneWorker, job_id: str, work: TuningWorkload) -> float:
    """Return the loss of a published adapter on the job's validation data."""
    loader = worker.loaders.open(work)
    trainer = open_trainer(worker.base, work, loader, torch.device("cpu"))
    layout = trainer.adapter.layout
    matrices = load_file(worker.root / "output" / CELL / "u" / job_id / "adapter_model.safetensors")
    flat = layout.join({name.removeprefix("base_model.model."): each for name, each in matrices.items()})
    state = fresh_from(AdapterState(flat, torch.zeros_like(flat), torch.zeros_like(flat), 0), layout)
    trainer = Trainer(
        trainer.base, new_adapter(trainer.adapter.task, layout, state, trainer.device), trainer.device, 8
    )
    assert loader.validation is not None
    samples = [Sample(index, 0, loader.validation[index]) for index in range(len(loader.validation))]
    loss, tokens = trainer.accumulate(samples, 0, 1)[0].tolist()
    return loss / tokens


@pytest.mark.long
@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_related_task_transfers_more(teacher: LoneWorker, mode: TransferMode) -> None:
    target = job("target", _STEPS)
    teacher.run(assigned("n1", order("alone", target)))
    losses = {"alone": validation_loss(teacher, "alone", target)}
    for name in ("related", "unrelated"):
        other = order(f"other-{name}", job(name, 40 if mode == "temporal" else _STEPS))
        teacher.run(assigned("n1", other, order(name, target), mode=mode))
        losses[name] = validation_loss(teacher, name, target)
    assert losses["related"] < losses["unrelated"]
    assert losses["related"] < losses["alone"]
