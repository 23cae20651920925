"""Gradients, profile runs and bad input of jobs of a classifier."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from executors.gang.batches import share
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.model_kind import records_in
from executors.lora.records import TEXT_RECORDS
from executors.node.runner import UnfitError
from executors.tuner.embedding import ParameterGroups, embed, mean_features, source_predictions
from executors.tuner.indexing import Indexer, IndexFiles
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from executors.tuner.training import Sample, Trainer
from schemas.fleet import RunFailed
from schemas.merging.reports import TaskProfiled
from schemas.merging.workload import TuningWorkload
from tests.support.classifiers import FAMILIES
from tests.support.tuner_nodes import DATASET, Fleet, assigned, order, profile_of
from tests.support.tuner_tasks import LoneWorker, open_trainer, reports_of

MakeWorker = Callable[[str], LoneWorker]
MakeWork = Callable[..., TuningWorkload]


def batch_and_trainer(worker: LoneWorker, work: TuningWorkload) -> tuple[list[Sample], Trainer]:
    loader = worker.loaders.open(work)
    trainer = open_trainer(worker.base, work, loader, torch.device("cpu"))
    # A new adapter's B is zero, and so is half of its gradient.
    trainer.adapter.tensors[0].uniform_(-0.3, 0.3, generator=torch.Generator().manual_seed(3))
    records = loader.stream.indices(0, work.hyperparameters.batch_size)
    return [Sample(place, 0, loader.training[record]) for place, record in enumerate(records)], trainer


def gradient_on(trainer: Trainer, batch: list[Sample], world: int) -> tuple[Tensor, Tensor]:
    """The sums over `world` workers, one after another."""
    gradient, sums = torch.zeros_like(trainer.adapter.gradient), torch.zeros(1, 2)
    for rank in range(world):
        sums += trainer.accumulate([batch[place] for place in share(len(batch), rank, world)], 7, 1)
        gradient += trainer.adapter.gradient
    return gradient, sums


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed-again"])
@pytest.mark.parametrize(("world", "micro_batch_size"), [(1, 4), (3, 4), (8, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_is_independent_of_split(
    family: str,
    world: int,
    micro_batch_size: int,
    checkpointing: bool,
    worker_of: MakeWorker,
    work_of: MakeWork,
) -> None:
    worker = worker_of(family)
    batch, trainer = batch_and_trainer(worker, work_of(family, hyperparameters={"dropout": 0.4}))
    expected = gradient_on(trainer, batch, 1)
    frugal = {"dropout": 0.4, "gradient_checkpointing": checkpointing}
    batch, trainer = batch_and_trainer(worker, work_of(family, hyperparameters=frugal))
    trainer.micro_batch_size = micro_batch_size
    found = gradient_on(trainer, batch, world)
    assert expected[1][0, 1] == 6
    assert trainer.adapter.layout.head_size > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_uses_head_of_base_model(family: str, worker_of: MakeWorker, work_of: MakeWork) -> None:
    worker = worker_of(family)
    base, loader = worker.base, worker.loaders.open(work_of(family))
    sample = [loader.training[index] for index in range(3)]
    found = embed(base, sample, time.monotonic() + 60.0)
    plain = AutoModelForSequenceClassification.from_pretrained(base.directory)
    head = f"{base.objective.head_name}."
    matrices = {
        name: parameter
        for name, parameter in plain.named_parameters()
        if parameter.dim() >= 2 and not name.startswith(head)
    }
    groups = ParameterGroups.of(base)
    assert len(groups.parameters) == len(matrices)
    expected = torch.zeros(groups.length, dtype=torch.float64)
    for sequence in sample:
        ids, label = torch.tensor([sequence.token_ids]), torch.tensor([sequence.label])
        loss = plain(input_ids=ids, labels=label).loss
        gradients = torch.autograd.grad(loss, list(matrices.values()))
        for (_, first), gradient in zip(groups.parameters, gradients, strict=True):
            for number, part in enumerate(gradient.tensor_split(groups.blocks)):
                if part.numel():
                    expected[first + number] += part.double().square().mean()
    torch.testing.assert_close(
        torch.tensor(found.fisher, dtype=torch.float64), expected / 3, rtol=1e-3, atol=1e-12
    )
    assert mean_features(base, sample) == found.features
    assert not any(parameter.requires_grad for parameter in base.model.parameters())


def test_source_predicts_class_for_each_record(worker_of: MakeWorker, work_of: MakeWork) -> None:
    batch, trainer = batch_and_trainer(worker_of("llama"), work_of("llama"))
    probabilities, labels = source_predictions(trainer, [sample.sequence for sample in batch])
    assert probabilities.shape == (6, 3)
    assert labels.tolist() == [sample.sequence.label for sample in batch]


def test_profile_run_reports_its_measurements(classifiers: Fleet, work_of: MakeWork) -> None:
    classifiers.send(profile_of("n1", order("a", work_of("roberta")), iterations=12))
    classifiers.until_over("a/1")
    (report,) = classifiers.reports(TaskProfiled)
    assert len(report.losses) == 12
    assert report.losses[-1] < report.losses[0]
    assert 0 <= report.accuracy <= 1
    assert report.dataset_samples == 48
    assert max(report.embedding) > 0
    assert len(report.features) == 16
    assert report.memory_gib > 0
    assert report.steps


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"dataset": "text.jsonl"}, "dataset.path: text.jsonl, line 1: label: is missing"),
        ({"validation": "many.jsonl"}, "validation_path: many.jsonl, line 2: label: 3 is not in 0 to 2"),
        (
            {"hyperparameters": {"sequence_length": 41}},
            "hyperparameters.sequence_length: 41 tokens, the base",
        ),
        ({"hyperparameters": {"target_modules": ("classifier",)}}, "hyperparameters.target_modules: a: no"),
        ({"pipeline": True}, "pipeline: "),
    ],
)
def test_a_job_that_cannot_be_trained_anywhere(
    fields: dict[str, object], error: str, worker_of: MakeWorker, work_of: MakeWork
) -> None:
    reports = worker_of("roberta").run(assigned("n1", order("a", work_of("roberta", **fields))))
    (failed,) = reports_of(reports, RunFailed)
    assert failed.permanent
    assert failed.error.startswith(error)


def test_directory_of_other_classifier_is_refused(
    classifiers: Fleet, directories: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((directories["roberta"] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "regression"}))
    settings = classifiers.settings.model_copy(update={"base_model_dir": folder})
    with pytest.raises(UnfitError, match=r"base_model_dir: .*problem_type regression"):
        TunerRunner.started(classifiers.context("n9", []), settings, 1)


def test_an_index_is_of_one_form_of_records(
    directories: dict[str, Path], classifier_settings: TunerSettings, tmp_path: Path
) -> None:
    root, form = DatasetRoot(classifier_settings.dataset_root), records_in(directories["bert"])
    files = IndexFiles(tmp_path)
    Indexer(root, files).prepare(DATASET, drop_s=1e9)
    assert not list(tmp_path.iterdir())
    Indexer(root, files, form).prepare(DATASET, drop_s=1e9)
    with root.open(DATASET, files.find, form) as dataset:
        assert files.find(dataset.identity, form) is not None
        assert files.find(dataset.identity, TEXT_RECORDS) is None
        assert len(dataset) == 48
    assert load_base(directories["bert"]).objective.records.key == form.key
    assert records_in(None) is TEXT_RECORDS
