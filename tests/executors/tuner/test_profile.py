"""A profile run reports measurements of a job, and leaves its state unchanged."""

import time

import pytest
import torch

from executors.lora.shared_base import SharedBase
from executors.tuner.embedding import (
    ParameterGroups,
    embed,
    mean_features,
    source_predictions,
)
from schemas.fleet import RunStarted
from schemas.lora import Dataset
from schemas.merging.reports import MAX_EMBEDDING, TaskEvaluated, TaskProfiled
from tests.support.tuner_nodes import Fleet, assigned, order, profile_of, workload
from tests.support.tuner_tasks import LoneWorker, open_trainer, reports_of


def sequences(worker: LoneWorker, dataset: str = "pairs.jsonl", count: int = 8) -> list:
    loader = worker.loaders.open(workload(dataset=dataset))
    return [loader.training[index] for index in range(count)]


def test_profile_run_reports_its_measurements(fleet: Fleet) -> None:
    fleet.send(profile_of("n1", order("a")))
    fleet.until_over("a/1")
    assert len(fleet.reports(RunStarted)) == 1
    (report,) = fleet.reports(TaskProfiled)
    assert len(report.losses) == 5
    assert report.losses[-1] < report.losses[0]
    assert 0 < report.accuracy < 1
    assert report.dataset_samples == 48
    assert [(each.micro_batch_size, each.accumulation_steps) for each in report.steps] == [(6, 1), (3, 2)]
    assert report.memory_gib > 0
    assert report.loader_s > 0
    assert report.samples_done == 0
    # Nothing is kept.
    assert fleet.checkpoints("a") == []


def test_throttled_steps_take_their_time(fleet: Fleet) -> None:
    fleet.add("slow", least_sequence_s=0.05)
    fleet.send(profile_of("slow", order("a")))
    fleet.until_over("a/1")
    (report,) = fleet.reports(TaskProfiled)
    assert min(each.step_s for each in report.steps) >= 6 * 0.05


def test_a_profile_run_without_validation_data(fleet: Fleet) -> None:
    fleet.send(profile_of("n1", order("a", workload(validation=None, sharing=False))))
    fleet.until_over("a/1")
    (report,) = fleet.reports(TaskProfiled)
    assert report.accuracy is None


def test_whole_epoch_profile_reports_its_accuracy(fleet: Fleet) -> None:
    fleet.send(profile_of("n1", order("a"), iterations=12))
    fleet.until_over("a/1")
    (report,) = fleet.reports(TaskProfiled)
    assert len(report.losses) == 12, "it goes on after its epoch of eight"
    assert report.accuracy_after_epoch > report.accuracy


@pytest.mark.parametrize(("dataset", "epoch"), [("pairs.jsonl", 8), ("other.jsonl", 5)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_profile_epoch_equals_job_epoch(worker: LoneWorker, dataset: str, epoch: int, dropout: float) -> None:
    work = workload(epoch, dataset=dataset, hyperparameters={"dropout": dropout})
    shown = worker.profiled(profile_of("n1", order("a", work), iterations=epoch + 2), is_halted=False)
    reports = worker.run(assigned("n1", order("a", work)))
    last = reports_of(reports, TaskEvaluated)[-1]
    assert (last.iterations, last.epochs) == (epoch, 1.0)
    assert shown.accuracy_after_epoch == last.accuracy


@pytest.mark.parametrize(
    ("iterations", "validation", "is_measured"),
    [(8, "held-back.jsonl", True), (7, "held-back.jsonl", False), (12, None, False)],
)
def test_short_profile_has_no_epoch_accuracy(
    worker: LoneWorker, iterations: int, validation: str | None, is_measured: bool
) -> None:
    work = workload(validation=validation, sharing=False)
    shown = worker.profiled(profile_of("n1", order("a", work), iterations=iterations), is_halted=False)
    assert (shown.accuracy_after_epoch is not None) == is_measured


def test_counted_records_replace_declared_number(worker: LoneWorker) -> None:
    declared = {"path": "pairs.jsonl", "samples": 1_000}
    work = workload().model_copy(update={"dataset": Dataset.model_validate(declared)})
    shown = worker.profiled(profile_of("n1", order("a", work), iterations=8), is_halted=False)
    assert shown.accuracy_after_epoch is not None


def test_the_embedding_is_the_mean_of_squared_gradients(base: SharedBase, worker: LoneWorker) -> None:
    sample = sequences(worker, count=3)
    found = embed(base, sample, time.monotonic() + 60.0)
    groups = ParameterGroups.of(base)
    expected = torch.zeros(groups.length, dtype=torch.float64)
    for sequence in sample:
        ids = torch.tensor([sequence.token_ids])
        parameters = [parameter for parameter, _ in groups.parameters]
        for parameter in parameters:
            parameter.requires_grad_(True)
        length = len(sequence.token_ids)
        logits = base.model(
            input_ids=ids,
            position_ids=torch.arange(length)[None],
            sequence_runs=((length, 1),),
            use_cache=False,
        ).logits[0]
        rows = slice(sequence.loss_start - 1, length - 1)
        loss = -logits[rows].log_softmax(-1).gather(1, ids[0, sequence.loss_start :, None]).mean()
        for (parameter, first), gradient in zip(
            groups.parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            for number, part in enumerate(gradient.tensor_split(groups.blocks)):
                expected[first + number] += part.double().square().mean()
            parameter.requires_grad_(False)
    torch.testing.assert_close(
        torch.tensor(found.fisher, dtype=torch.float64), expected / 3, rtol=1e-4, atol=0
    )
    assert found.samples == 3


def test_the_backbone_keeps_its_bits_and_stays_frozen(base: SharedBase, worker: LoneWorker) -> None:
    before = {name: parameter.clone() for name, parameter in base.model.named_parameters()}
    one = embed(base, sequences(worker), time.monotonic() + 60.0)
    assert embed(base, sequences(worker), time.monotonic() + 60.0) == one
    for name, parameter in base.model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert not parameter.requires_grad
        assert parameter.grad is None


def test_embeddings_of_base_have_one_length(base: SharedBase, worker: LoneWorker) -> None:
    found = [
        embed(base, sequences(worker, dataset), time.monotonic() + 60.0)
        for dataset in ("pairs.jsonl", "other.jsonl")
    ]
    assert {len(each.fisher) for each in found} == {ParameterGroups.of(base).length}
    assert ParameterGroups.of(base).length <= MAX_EMBEDDING
    assert {len(each.features) for each in found} == {32}
    assert found[0].fisher != found[1].fisher


def test_features_without_gradients_are_those_of_the_embedding(base: SharedBase, worker: LoneWorker) -> None:
    sample = sequences(worker)
    assert mean_features(base, sample) == embed(base, sample, time.monotonic() + 60.0).features


def test_a_deadline_leaves_one_record_at_least(base: SharedBase, worker: LoneWorker) -> None:
    assert embed(base, sequences(worker), time.monotonic()).samples == 1


def test_a_halted_profile_run_has_nothing_to_report(
    worker: LoneWorker,
) -> None:
    assert worker.profiled(profile_of("n1", order("a")), is_halted=True) is None


def test_a_source_model_predicts_the_targets_tokens(base: SharedBase, worker: LoneWorker) -> None:
    work = workload()
    trainer = open_trainer(base, work, worker.loaders.open(work), torch.device("cpu"))
    sample = sequences(worker, "other.jsonl", 4)
    probabilities, labels = source_predictions(trainer, sample)
    assert len(labels) == sum(each.loss_tokens for each in sample)
    assert probabilities.sum(-1).tolist() == pytest.approx([1.0] * len(labels))
    right, total = trainer.count_right(sample)
    assert right == int((probabilities.argmax(-1) == labels).sum())
    assert total == len(labels)
