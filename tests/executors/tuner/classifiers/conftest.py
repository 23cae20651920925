"""Tiny classifiers of each family, data for them, and workers and nodes that hold them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executors.lora.base_model import load_base
from executors.tuner.settings import TunerSettings
from schemas.merging.workload import TuningWorkload
from tests.support.classifiers import FAMILIES, TARGETS, TOPICS, write_classifier, write_labelled
from tests.support.tuner_nodes import DATASET, VALIDATION, Fleet, workload
from tests.support.tuner_tasks import LoneWorker

MakeWork = Callable[..., TuningWorkload]


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("classifiers")
    return {family: write_classifier(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def classifier_settings(
    tuner_settings: TunerSettings, tmp_path_factory: pytest.TempPathFactory
) -> TunerSettings:
    datasets = tmp_path_factory.mktemp("labelled")
    write_labelled(datasets / DATASET)
    write_labelled(datasets / VALIDATION, records=30, seed=6)
    # The same words, with other labels.
    write_labelled(datasets / "other.jsonl", records=30, seed=7, topics=TOPICS[::-1])
    write_labelled(datasets / "other-validation.jsonl", records=20, seed=8, topics=TOPICS[::-1])
    write_labelled(datasets / "large.jsonl", records=300, seed=9)
    write_labelled(datasets / "large-other.jsonl", records=300, seed=10, topics=TOPICS[::-1])
    (datasets / "text.jsonl").write_text('{"text": "sky"}\n')
    (datasets / "many.jsonl").write_text('{"text": "sky", "label": 2}\n{"text": "sky", "label": 3}\n')
    return tuner_settings.model_copy(update={"dataset_root": datasets})


@pytest.fixture
def worker_of(
    directories: dict[str, Path], classifier_settings: TunerSettings, tmp_path: Path
) -> Callable[[str], LoneWorker]:
    """In this process, with a classifier of a family."""

    def make(family: str) -> LoneWorker:
        return LoneWorker(load_base(directories[family]), tmp_path, classifier_settings)

    return make


@pytest.fixture
def classifiers(
    directories: dict[str, Path], classifier_settings: TunerSettings, fork_server: None, tmp_path: Path
) -> Iterator[Fleet]:
    """One node whose two workers hold a RoBERTa."""
    settings = classifier_settings.model_copy(update={"base_model_dir": directories["roberta"]})
    fleet = Fleet(tmp_path, settings)
    fleet.add("n1", gpus=2)
    yield fleet
    fleet.close()


@pytest.fixture(scope="session")
def work_of() -> MakeWork:
    """A job of a classifier of a family."""

    def make(family: str, iterations: int = 12, *, other: bool = False, **fields: object) -> TuningWorkload:
        targets = {"target_modules": TARGETS[family]}
        chosen = {**targets, **fields.pop("hyperparameters", {})}
        names = {"dataset": "other.jsonl", "validation": "other-validation.jsonl"} if other else {}
        return workload(iterations, hyperparameters=chosen, **(names | fields))

    return make
