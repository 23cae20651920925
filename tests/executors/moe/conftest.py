"""Nodes that train and serve a tiny model with experts, data for it, and ranks without nodes."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.network import RunningRanks, Work, loopback, run_ranks
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.conversion.storage import MoeDescription, save
from executors.moe.gating import Gating
from executors.moe.settings import MoeSettings
from tests.support.executors import write_dataset
from tests.support.fork_server import start_fork_server
from tests.support.moe_nodes import DENSE, EXPERTS, MODEL, PROMPTS, Fleet

RunRanks = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def moe_settings(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> MoeSettings:
    root = tmp_path_factory.mktemp("moe")
    (root / "datasets").mkdir()
    write_dataset(root / "datasets" / PROMPTS, 24)
    model = AutoModelForCausalLM.from_pretrained(llama_directory)
    conversion = LayerConversion(experts=EXPERTS, noise=0.5)
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
        peer_timeout_s=30.0,
        release_grace_s=30.0,
        stop_grace_s=15.0,
    )


@pytest.fixture(scope="session")
def fork_server() -> None:
    start_fork_server()


@pytest.fixture
def run(fork_server: None, tmp_path: Path) -> RunRanks:
    """Runs what ranks do, each in a process of its own, on the loopback interface, and returns their results;
    fails if one did."""

    def run(work: Work, world: int, **arguments: Any) -> list[dict[str, Any]]:
        return run_ranks(work, loopback(world), Path(mkdtemp(dir=tmp_path)), timeout_s=120.0, **arguments)

    return run


@pytest.fixture
def run_survivors(fork_server: None, tmp_path: Path) -> RunRanks:
    """Run ranks of which some may fail, and return the results of the others."""

    def run(work: Work, world: int, among: Sequence[int], **arguments: Any) -> list[dict[str, Any]]:
        with RunningRanks(work, loopback(world), Path(mkdtemp(dir=tmp_path)), **arguments) as ranks:
            return ranks.results(120.0, among)

    return run


@pytest.fixture
def fleet(moe_settings: MoeSettings, fork_server: None, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, moe_settings)
    fleet.add("n1")
    fleet.add("n2")
    yield fleet
    fleet.close()
