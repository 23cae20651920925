"""Nodes that train and serve a tiny model with experts, and data for it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from executors.moe.conversion.convert import Conversion, convert
from executors.moe.conversion.storage import MoeDescription, save
from executors.moe.gating import Gating
from executors.moe.ranks.kinds import warm_up
from executors.moe.settings import MoeSettings
from tests.support.executors import write_dataset
from tests.support.moe_nodes import DENSE, EXPERTS, MODEL, PROMPTS, Fleet


@pytest.fixture(scope="session")
def moe_settings(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> MoeSettings:
    root = tmp_path_factory.mktemp("moe")
    (root / "datasets").mkdir()
    write_dataset(root / "datasets" / PROMPTS, 24)
    model = AutoModelForCausalLM.from_pretrained(llama_directory)
    conversion = Conversion(experts=EXPERTS, noise=0.5)
    gating = Gating("top2")
    convert(model, conversion, gating)
    save(model, MoeDescription(gating=gating, conversion=conversion), root / "models" / MODEL)
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(root / "models" / MODEL)
    shutil.copytree(llama_directory, root / "models" / DENSE)
    return MoeSettings(
        model_root=root / "models",
        dataset_root=root / "datasets",
        progress_s=0.1,
        join_timeout_s=60.0,
        collective_timeout_s=30.0,
        release_grace_s=30.0,
        stop_grace_s=15.0,
    )


@pytest.fixture(scope="session")
def fork_server() -> None:
    warm_up()


@pytest.fixture
def fleet(moe_settings: MoeSettings, fork_server: None, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, moe_settings)
    fleet.add("n1")
    fleet.add("n2")
    yield fleet
    fleet.close()
