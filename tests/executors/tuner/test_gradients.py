"""The gradient of a step is that of its whole batch, whatever the workers and the micro-batches are."""

import pytest
import torch
from torch import Tensor

from executors.gang.batches import share
from executors.lora.shared_base import SharedBase
from executors.tuner.data import Loader
from executors.tuner.training import Sample, Trainer
from schemas.merging.workload import TuningWorkload
from tests.support.tuner_nodes import workload
from tests.support.tuner_tasks import LoneWorker, open_trainer

_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def trainer_of(base: SharedBase, loader: Loader, work: TuningWorkload, micro_batch_size: int) -> Trainer:
    trainer = open_trainer(base, work, loader, torch.device("cpu"))
    # A new adapter's B is zero, and so is half of its gradient.
    trainer.adapter.tensors[0].uniform_(-0.3, 0.3, generator=torch.Generator().manual_seed(3))
    trainer.micro_batch_size = micro_batch_size
    return trainer


def batch_of(loader: Loader, work: TuningWorkload) -> list[Sample]:
    records = loader.stream.indices(0, work.hyperparameters.batch_size)
    return [Sample(place, 0, loader.training[record]) for place, record in enumerate(records)]


def gradient_on(trainer: Trainer, batch: list[Sample], world: int) -> tuple[Tensor, Tensor]:
    """Return the sums over `world` workers, computed one after another."""
    gradient, sums = torch.zeros_like(trainer.adapter.gradient), torch.zeros(1, 2)
    for rank in range(world):
        sums += trainer.accumulate([batch[place] for place in share(len(batch), rank, world)], 7, 1)
        gradient += trainer.adapter.gradient
    return gradient, sums


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("world", "micro_batch_size"), [(1, 1), (1, 4), (2, 2), (3, 4), (8, 1)])
def test_accumulated_gradient_equals_one_pass(
    base: SharedBase, worker: LoneWorker, world: int, micro_batch_size: int, dropout: float
) -> None:
    work = workload(hyperparameters={"dropout": dropout})
    loader = worker.loaders.open(work)
    batch = batch_of(loader, work)
    expected = gradient_on(trainer_of(base, loader, work, len(batch)), batch, 1)
    found = gradient_on(trainer_of(base, loader, work, micro_batch_size), batch, world)
    assert expected[0].abs().max() > 0.1
    torch.testing.assert_close(found, expected, **_TOLERANCE)


def test_dropout_masks_depend_on_the_step(base: SharedBase, worker: LoneWorker) -> None:
    work = workload(hyperparameters={"dropout": 0.4})
    loader = worker.loaders.open(work)
    trainer = trainer_of(base, loader, work, 6)
    losses = [float(trainer.accumulate(batch_of(loader, work), step, 1)[0, 0]) for step in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_computing_activations_again_changes_no_gradient(
    base: SharedBase, worker: LoneWorker, dropout: float
) -> None:
    work = workload(hyperparameters={"dropout": dropout})
    loader = worker.loaders.open(work)
    batch = batch_of(loader, work)
    expected = gradient_on(trainer_of(base, loader, work, 6), batch, 1)
    in_training = [module.training for module in base.model.modules()]
    frugal = workload(hyperparameters={"dropout": dropout, "gradient_checkpointing": True})
    found = gradient_on(trainer_of(base, loader, frugal, 6), batch, 1)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    assert [module.training for module in base.model.modules()] == in_training


def test_the_mean_loss_is_that_of_transformers(base: SharedBase, worker: LoneWorker) -> None:
    work = workload()
    loader = worker.loaders.open(work)
    batch = batch_of(loader, work)
    trainer = open_trainer(base, work, loader, torch.device("cpu"))
    step = trainer.step(batch, 0, 1, (), lambda vector: None)
    losses, tokens = 0.0, 0
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(base.directory)
    for sample in batch:
        ids = torch.tensor([sample.sequence.token_ids])
        labels = ids.clone()
        labels[0, : sample.sequence.loss_start] = -100
        with torch.no_grad():
            losses += float(reference(input_ids=ids, labels=labels).loss) * sample.sequence.loss_tokens
        tokens += sample.sequence.loss_tokens
    assert step.losses[0] == pytest.approx(losses / tokens, rel=1e-5)


def test_frozen_layers_have_no_adapter(base: SharedBase, worker: LoneWorker) -> None:
    work = workload(hyperparameters={"frozen_layers": 1})
    trainer = open_trainer(base, work, worker.loaders.open(work), torch.device("cpu"))
    assert {name.split(".")[2] for name in trainer.adapter.layout.sites} == {"1"}
