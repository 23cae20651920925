"""Nodes whose workers keep the tiny base model, with data for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.lora.shared_base import SharedBase
from executors.tuner.settings import TunerSettings
from tests.support.executors import write_dataset
from tests.support.fork_server import start_fork_server
from tests.support.tuner_nodes import DATASET, VALIDATION, Fleet
from tests.support.tuner_tasks import LoneWorker


@pytest.fixture(scope="session")
def tuner_settings(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> TunerSettings:
    datasets = tmp_path_factory.mktemp("tuner-data")
    write_dataset(datasets / DATASET)
    write_dataset(datasets / VALIDATION, records=20, seed=6)
    write_dataset(datasets / "other.jsonl", records=30, seed=7)
    (datasets / "bad.jsonl").write_text("{\n")
    return TunerSettings(
        base_model_dir=llama_directory,
        dataset_root=datasets,
        # Evaluations within an epoch depend on the machine's speed: one at the first fraction, and no more.
        evaluation_share=0.0,
        checkpoint_s=3_600.0,
        checkpoint_wait_s=0.5,
        join_timeout_s=30.0,
        peer_timeout_s=30.0,
        stop_grace_s=15.0,
    )


@pytest.fixture(scope="session")
def fork_server() -> None:
    start_fork_server()


@pytest.fixture
def fleet(tuner_settings: TunerSettings, fork_server: None, tmp_path: Path) -> Iterator[Fleet]:
    """One node with two workers."""
    fleet = Fleet(tmp_path, tuner_settings)
    fleet.add("n1", gpus=2)
    yield fleet
    fleet.close()


@pytest.fixture
def worker(base: SharedBase, tuner_settings: TunerSettings, tmp_path: Path) -> LoneWorker:
    """In this process."""
    return LoneWorker(base, tmp_path, tuner_settings)
