"""The entire model without its parameters, and the stages that are placed in it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.lora.base_model import BaseModelError, load_base
from executors.lora.batch import TextSequence, pack
from executors.tuner.pipeline.costs import measured_costs
from executors.tuner.pipeline.partition import cut
from executors.tuner.pipeline.structure import StageWeights, load_structure, parameter_costs
from tests.support.unfit_models import CONFIGURATIONS, FAULTS, NO_VOCABULARY, Harm, cast, remove_tokenizer

CPU = torch.device("cpu")


def test_a_structure_has_all_shapes_and_no_parameter(deep_directory: Path) -> None:
    structure = load_structure(deep_directory, CPU)
    whole = load_base(deep_directory)
    expected = {name: parameter.shape for name, parameter in whole.model.named_parameters()}
    assert {n: p.shape for n, p in structure.base.model.named_parameters()} == expected
    assert {parameter.device.type for parameter in structure.base.model.parameters()} == {"meta"}
    assert list(structure.base.sites) == list(whole.sites)


def test_stages_together_are_whole_model(deep_directory: Path) -> None:
    structure, whole = load_structure(deep_directory, CPU), load_base(deep_directory).model
    model, family = structure.base.model, structure.family
    weights = StageWeights(structure, cut(parameter_costs(structure), 4), CPU)
    batch = pack([[TextSequence(list(range(2, 20)), 1), TextSequence(list(range(30, 39)), 4)]], CPU)
    hidden = torch.empty(0)
    for stage, layers in enumerate(weights.partition):
        weights.place(stage, weights.read(stage))
        if stage == 0:
            hidden = family.embed(model, batch)
        hidden = family.run(model, structure.layers[layers.start : layers.stop], hidden, batch)
        if stage == 3:
            hidden = structure.logits(hidden, batch.loss_rows)
        weights.drop(stage)
        assert all(parameter.device.type == "meta" for parameter in model.parameters())
    expected = whole(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        sequence_runs=batch.sequence_runs,
        logits_to_keep=batch.loss_rows,
        use_cache=False,
    ).logits[0]
    assert torch.equal(hidden, expected)


def test_tied_parameters_of_stages_are_shared(deep_directory: Path) -> None:
    structure = load_structure(deep_directory, CPU)
    weights = StageWeights(structure, cut(parameter_costs(structure), 4), CPU)
    assert weights.size_bytes({0, 3}) == weights.size_bytes({0}) + weights.size_bytes({3}) - 4 * 320 * 32
    for stage in (0, 3):
        weights.place(stage, weights.read(stage))
    model = structure.base.model
    tokens = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight.data_ptr() == tokens.data_ptr()
    weights.drop(0)
    assert tokens.shape == model.get_output_embeddings().weight.shape
    assert model.get_input_embeddings().weight.device.type == "meta"
    assert model.get_output_embeddings().weight.device.type == "cpu"


def test_the_head_counts_with_the_last_layer(deep_directory: Path) -> None:
    costs = parameter_costs(load_structure(deep_directory, CPU))
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    assert costs == [layer] * 4 + [layer + 320 * 32]


def test_measured_costs_place_nothing(deep_directory: Path) -> None:
    structure = load_structure(deep_directory, CPU)
    costs = measured_costs(structure, CPU, sequences=2, tokens=16, rounds=3)
    assert len(costs) == 5
    assert min(costs) > 0
    assert all(parameter.device.type == "meta" for parameter in structure.base.model.parameters())


def test_files_without_the_models_prefix_are_read(deep_directory: Path, tmp_path: Path) -> None:
    directory = tmp_path / "bare"
    directory.mkdir()
    for path in deep_directory.glob("*.json"):
        if "index" not in path.name:
            shutil.copy(path, directory)
    tensors = {}
    for path in deep_directory.glob("*.safetensors"):
        tensors |= {name.removeprefix("model."): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    structure = load_structure(directory, CPU)
    weights = StageWeights(structure, [range(5)], CPU)
    weights.place(0, weights.read(0))
    norm = structure.base.model.get_submodule("model.norm").weight
    assert torch.equal(norm, tensors["norm.weight"])


@pytest.fixture
def directory(llama_directory: Path, tmp_path: Path) -> Path:
    """A copy of a model, to be spoiled."""
    return Path(shutil.copytree(llama_directory, tmp_path / "model"))


@pytest.mark.parametrize(
    ("harm", "error"), (FAULTS | CONFIGURATIONS).values(), ids=(FAULTS | CONFIGURATIONS).keys()
)
def test_unfit_model_is_refused_like_whole_one(directory: Path, harm: Harm, error: str) -> None:
    harm(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {error}"):
        load_structure(directory, CPU)


def test_integers_for_parameters_are_refused(directory: Path) -> None:
    cast(directory, "_proj.weight", torch.int8)
    with pytest.raises(BaseModelError, match=r"model\.safetensors: 14 weights are not floating point"):
        load_structure(directory, CPU)


def test_a_model_without_a_tokenizer_is_refused(directory: Path) -> None:
    remove_tokenizer(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {NO_VOCABULARY}"):
        load_structure(directory, CPU)


def test_tied_parameters_are_read_by_either_name(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    structure = load_structure(directory, CPU)
    weights = StageWeights(structure, [range(2)], CPU)
    weights.place(0, weights.read(0))
    assert torch.equal(structure.base.model.get_input_embeddings().weight, tensors["lm_head.weight"])
    assert load_base(directory).layers == 2


def test_other_files_of_folder_are_not_read(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    others = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    save_file(others, directory / "other.safetensors", {"format": "pt"})
    structure = load_structure(directory, CPU)
    weights = StageWeights(structure, [range(2)], CPU)
    assert torch.equal(weights.read(0)["model.norm.weight"], tensors["model.norm.weight"])


def test_a_family_that_cannot_be_cut_is_refused(deep_directory: Path, tmp_path: Path) -> None:
    directory = tmp_path / "other"
    shutil.copytree(deep_directory, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "opt"}))
    with pytest.raises(BaseModelError, match="a 'opt' cannot be cut into stages; gpt2, llama"):
        load_structure(directory, CPU)


def test_folder_without_safe_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"config\.json is missing"):
        load_structure(tmp_path, CPU)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BaseModelError, match="pickled weights are refused"):
        load_structure(tmp_path, CPU)
