"""Only local, pickle-free models are loaded; the default one is made once and is the same each time."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

from executors.lora.base_model import BaseModelError, load_base
from executors.lora.default_base import (
    BaseNotKeptError,
    Recipe,
    cache_directory,
    default_base_directory,
)
from executors.lora.shared_base import SharedBase
from tests.support.small_disk import small_disk

SMALL = Recipe(
    vocabulary_size=300,
    hidden_features=16,
    intermediate_features=16,
    layers=1,
    heads=1,
    text_bytes=20_000,
    steps=10,
    batch_size=2,
    sequence_length=16,
)


def test_pickled_weights_are_refused(llama_directory: Path, tmp_path: Path) -> None:
    directory = tmp_path / "pickled"
    shutil.copytree(llama_directory, directory)
    weights = directory / "model.safetensors"
    weights.rename(directory / "pytorch_model.bin")
    with pytest.raises(BaseModelError, match="pickled weights are refused"):
        load_base(directory)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"config\.json is missing"):
        load_base(tmp_path)


def test_what_is_no_model_of_text_is_refused(tmp_path: Path) -> None:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ViTForImageClassification(ViTConfig(**size)).save_pretrained(tmp_path)
    error = "no causal language model or sequence classifier: its architecture is ViTForImageClassification"
    with pytest.raises(BaseModelError, match=error):
        load_base(tmp_path)


def test_a_language_model_gets_no_untrained_head(tmp_path: Path) -> None:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForSequenceClassification(LlamaConfig(vocab_size=300, **size)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BaseModelError, match=r"1 weights of LlamaForCausalLM are missing, such as lm_head"):
        load_base(tmp_path)


def test_base_is_frozen_with_plain_head(base: SharedBase) -> None:
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert not base.model.training
    assert "lm_head" not in base.sites
    assert len(base.sites) == 2 * 7


def test_default_base_is_recreated_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for name in ("one", "two"):
        monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / name))
        assert cache_directory() == tmp_path / name
        directory = default_base_directory(SMALL)
        written = (directory / "model.safetensors").stat().st_mtime_ns
        assert default_base_directory(SMALL) == directory
        assert (directory / "model.safetensors").stat().st_mtime_ns == written
        weights.append(load_file(directory / "model.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name])


def test_a_damaged_default_base_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    weights = default_base_directory(SMALL) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1_000])
    assert default_base_directory(SMALL) == weights.parent
    assert weights.read_bytes() == whole


def test_cache_without_room_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "cache", mib=1) as disk:
        disk.fill(leave_bytes=16_384)
        monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
        with pytest.raises(BaseNotKeptError, match=r"/cache \(.*No space.*\): set MILLRACE_CACHE_DIR to"):
            default_base_directory(SMALL)
        assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_cache_that_is_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(BaseNotKeptError, match=r"/file \(.*File exists.*\): set MILLRACE_CACHE_DIR to"):
        default_base_directory(SMALL)


def test_the_default_base_leaves_global_random_state_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    before = torch.get_rng_state()
    default_base_directory(SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_concurrent_callers_share_one_default_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The lock belongs to an open file, so it keeps threads apart just as it does processes.
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    with ThreadPoolExecutor(3) as racers:
        answers = set(racers.map(default_base_directory, [SMALL] * 3))
    (directory,) = answers
    assert load_base(directory).longest_sequence_tokens == 1024
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [directory]
