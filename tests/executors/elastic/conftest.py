"""Nodes whose workers are forked from one server, and a tiny model and dataset for them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.elastic.settings import ElasticSettings
from tests.support.classifiers import write_classifier
from tests.support.elastic_nodes import DATASET, MODEL, Fleet, workload
from tests.support.executors import write_dataset
from tests.support.fork_server import start_fork_server
from tests.support.trained import Trained


@pytest.fixture(scope="session")
def elastic_settings(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> ElasticSettings:
    root = tmp_path_factory.mktemp("elastic")
    (root / "datasets").mkdir()
    write_dataset(root / "datasets" / DATASET)
    shutil.copytree(llama_directory, root / "models" / MODEL)
    write_classifier(root / "models" / "classifier", "llama")
    return ElasticSettings(
        model_root=root / "models",
        dataset_root=root / "datasets",
        checkpoint_s=3600.0,
        checkpoint_wait_s=0.5,
        progress_s=1e-6,
        join_timeout_s=30.0,
        peer_timeout_s=30.0,
        release_grace_s=30.0,
        stop_grace_s=15.0,
    )


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Warm."""
    start_fork_server()


@pytest.fixture
def fleet(elastic_settings: ElasticSettings, fork_server: None, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, elastic_settings)
    fleet.add("n1")
    fleet.add("n2")
    yield fleet
    fleet.close()


@pytest.fixture(scope="session")
def alone(
    elastic_settings: ElasticSettings, fork_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """Return the result of `workload()` on one undisturbed worker."""
    fleet = Fleet(tmp_path_factory.mktemp("alone"), elastic_settings)
    fleet.add("n1")
    fleet.assign("alone", 1, [("n1", 1)], workload(keeps=False))
    fleet.until(fleet.is_over("alone", "n1"))
    return Trained.of(fleet, "alone")
