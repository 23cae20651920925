"""The model that a job names: where it may be, and what errors call it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.elastic.rank import load_model as load_elastic
from executors.gang.job_models import ModelError, model_directory, named_as_in_job
from executors.moe.training.model import load_model as load_moe
from executors.moe.training.model import records_of
from schemas.experts.workload import MoeTrainWorkload
from tests.support.unfit_models import NO_VOCABULARY, configure, remove_tokenizer

NAME = "team/llama"


@pytest.fixture
def root(llama_directory: Path, tmp_path: Path) -> Path:
    shutil.copytree(llama_directory, tmp_path / NAME)
    return tmp_path


def loaded_by_elastic(directory: Path) -> object:
    return load_elastic(directory, None, 0, torch.device("cpu"), NAME)


def loaded_by_moe(directory: Path) -> object:
    fields = {"work_samples": 1, "model": NAME, "dataset": {"path": "d", "samples": 1}}
    return load_moe(directory, MoeTrainWorkload.model_validate(fields | {"conversion": {"experts": 2}}))


LOADERS = pytest.mark.parametrize("load", [loaded_by_elastic, loaded_by_moe])


@LOADERS
def test_model_of_other_shape_names_field(root: Path, load: Callable[[Path], Any]) -> None:
    directory = model_directory(root, NAME)
    configure(directory, num_hidden_layers=3)
    with pytest.raises(ModelError, match=rf"^{NAME}: model\.safetensors: 9 weights of LlamaForCausalLM are"):
        load(directory)


@LOADERS
def test_model_without_tokenizer_names_field(root: Path, load: Callable[[Path], Any]) -> None:
    directory = model_directory(root, NAME)
    remove_tokenizer(directory)
    with pytest.raises(ModelError, match=f"^{NAME}: {NO_VOCABULARY}"):
        load(directory)


@pytest.mark.parametrize("load", [loaded_by_elastic, loaded_by_moe, lambda path: records_of(path, NAME)])
def test_configuration_without_model_names_field(root: Path, load: Callable[[Path], Any]) -> None:
    directory = model_directory(root, NAME)
    (directory / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=rf"^{NAME}: config\.json: is a JSON list, not an object"):
        load(directory)


def test_error_names_paths_within_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as raised, named_as_in_job(tmp_path, NAME):
        raise ValueError(f"{tmp_path}: cannot read {tmp_path}/merges.txt in {tmp_path}")
    assert str(raised.value) == f"{NAME}: cannot read merges.txt in {NAME}"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("other", "other: no Hugging Face model directory"),
        ("../model", r"\.\./model: a model is a relative path below the model root"),
        ("/model", "/model: a model is a relative path below the model root"),
        ("link", "link: leads out of the model root"),
    ],
)
def test_name_outside_root_is_refused(
    root: Path, tmp_path_factory: pytest.TempPathFactory, name: str, error: str
) -> None:
    (root / "link").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(ModelError, match=f"^{error}"):
        model_directory(root, name)
