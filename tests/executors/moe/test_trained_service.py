"""From training to service: sample paths and gating go with the model, and stock models need no file."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, MixtralConfig, MixtralForCausalLM

from executors.moe.conversion.sample_paths import SAMPLE_PATHS
from executors.moe.conversion.storage import load
from executors.moe.training.rank import ROUTING_TENSORS
from executors.node.checkpoints import CheckpointStore
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFailed, RunFinished, RunProgressed
from tests.support.moe_nodes import EXPERTS, LAYERS, MODEL, Fleet, service, training

BOTH = [("n1", 1), ("n2", 1)]
TRAINED_SAMPLES = 240
"""In 40 steps, of which the last ten are profiled."""


@pytest.fixture(scope="session")
def trained(moe_settings, fork_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output root of nodes that have trained a model `j`."""
    fleet = Fleet(tmp_path_factory.mktemp("trained"), moe_settings)
    for name in ("n1", "n2"):
        fleet.add(name, progress_s=1e-3)
    work = training(2, TRAINED_SAMPLES, hyperparameters={"learning_rate": 1e-5}, experts_per_device=2)
    fleet.assign("j", BOTH, work)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    reports = [each.measured for each in fleet.reports(RunProgressed, node="n1")]
    measured = [each for each in reports if each is not None]
    assert measured
    for each in measured:
        assert (each.gpus, each.micro_batch_size) == (2, 3)
        assert 0 < each.exchange_s < each.step_s
    return fleet.root / "output"


def serve(fleet: Fleet, model_root: Path, **fields) -> ExpertsProfiled:
    for name in ("n1", "n2"):
        fleet.add(name, model_root=model_root)
    fleet.assign("k", BOTH, service(model="c/u/j", **fields), report_interval_s=1e-6)
    fleet.until(fleet.is_over("k", "n1", "n2"), 240.0)  # where nothing is compiled yet
    assert not fleet.reports(RunFailed)
    (finished,) = fleet.reports(RunFinished)
    assert finished.samples_done == 60
    (profiled,) = fleet.reports(ExpertsProfiled)
    return profiled


def test_service_begins_with_paths_of_training(fleet: Fleet, trained: Path) -> None:
    profiled = serve(fleet, trained, path_length=1)  # of two layers
    assert (profiled.profiled_in, profiled.samples_done, profiled.accuracy) == ("training", 0, None)
    assert profiled.paths > 0
    tokens = {sum(layer.tokens) for layer in profiled.layers}
    assert len(tokens) == 1
    assert len(profiled.layers) == LAYERS
    # All batches of six requests are served with an estimate.
    assert sum(report.batches for report in fleet.reports(ExpertsRouted)) == 10


def test_service_profiles_if_paths_are_refused(fleet: Fleet, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "models")
    path = tmp_path / "models" / "c" / "u" / "j" / SAMPLE_PATHS
    path.write_bytes(path.read_bytes()[:-8])
    profiled = serve(fleet, tmp_path / "models")
    assert (profiled.profiled_in, profiled.samples_done) == ("service", 24)
    assert sum(report.batches for report in fleet.reports(ExpertsRouted)) == 6


def test_longer_paths_than_trained_are_profiled(fleet: Fleet, trained: Path) -> None:
    assert serve(fleet, trained, path_length=4).profiled_in == "service"


@pytest.mark.parametrize(("is_earlier", "expected"), [(True, "all"), (False, "chosen")])
def test_earlier_checkpoint_keeps_its_threshold(fleet: Fleet, is_earlier: bool, expected: str) -> None:
    for name in ("n1", "n2"):
        fleet.add(name, checkpoint_s=1e-3, progress_s=1e-3)
    fleet.assign("j", BOTH, training(2, 150))
    fleet.until(lambda: any(each.samples_done >= 12 for each in fleet.reports(RunProgressed)))
    fleet.release("j", "preempted")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    folder = fleet.checkpoint_folder("j")
    store = CheckpointStore(folder.parent)
    newest = store.newest("j")
    assert newest is not None
    if is_earlier:  # of a version without the field, whose checkpoints lack the file
        shutil.rmtree(folder)
        files = {name: content for name, content in newest.files.items() if name != ROUTING_TENSORS}
        store.save("j", newest.token, newest.samples_done, files)
    for name in ("n1", "n2"):
        fleet.add(name)
    fleet.assign("j", BOTH, training(2, 150), generation=2, resume_samples=newest.samples_done)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    assert not fleet.reports(RunFailed)
    described = json.loads((fleet.result("j") / "moe.json").read_text())
    assert described["gating"]["threshold_on"] == expected


def test_stock_mixtral_is_trained_and_served(fleet: Fleet, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(fleet.settings.model_root / MODEL)
    config = MixtralConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=EXPERTS,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(3)
    own = MixtralForCausalLM(config)
    own.save_pretrained(tmp_path / "models" / "stock")
    tokenizer.save_pretrained(tmp_path / "models" / "stock")
    for name in ("n1", "n2"):
        fleet.add(name, model_root=tmp_path / "models")
    fleet.assign("t", BOTH, training(model="stock", conversion=None, work_samples=12))
    fleet.assign("s", BOTH, service(model="stock", requests={"most": 30}))
    fleet.until(lambda: fleet.is_over("t", "n1", "n2")() and fleet.is_over("s", "n1", "n2")(), 240.0)
    assert not fleet.reports(RunFailed)
    assert {report.job_id for report in fleet.reports(RunFinished)} == {"t", "s"}
    model, description = load(fleet.result("t"))
    assert (description.conversion, description.gating.mode) == (None, "adaptive")
    assert model.config.model_type == "mixtral"
