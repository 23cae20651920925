"""A base model of five layers, and data, for the pipelines of tests."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from executors.lora.lora_task import LLAMA_TARGET_MODULES, LoraTask

LAYERS = 5
_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")


@pytest.fixture(scope="session")
def deep_directory(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of five layers with tied embeddings, in several files."""
    directory = tmp_path_factory.mktemp("deep")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size="60KB")
    assert len(list(directory.glob("*.safetensors"))) > 1
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(directory)
    return directory


@pytest.fixture
def make_model(llama_directory: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A model of five layers, of another family than Llama, untied."""
    shape = {
        "vocab_size": 320,
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.1,
    }
    grouped = {
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "head_dim": 16,
        "tie_word_embeddings": False,
    }

    def make(family: str) -> Path:
        directory = tmp_path / f"model-{family}"
        torch.manual_seed(4)
        config = AutoConfig.for_model(family, **shape, **({} if family == "gpt2" else grouped))
        AutoModelForCausalLM.from_config(config).save_pretrained(directory)
        AutoTokenizer.from_pretrained(llama_directory).save_pretrained(directory)
        return directory

    return make


@pytest.fixture(scope="session")
def dataset_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`long` has texts longer than a sequence, `ragged` pairs of any length."""
    folder = tmp_path_factory.mktemp("pipeline-data")
    draw = random.Random(7)

    def text(fewest: int, most: int) -> str:
        return " ".join(draw.choices(_WORDS, k=draw.randint(fewest, most)))

    long = [{"text": text(70, 90)} for _ in range(24)]
    ragged = [{"prompt": text(1, 6), "completion": text(1, 25)} for _ in range(24)]
    for name, records in (("long", long), ("ragged", ragged)):
        lines = (json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def make_task() -> Callable[..., LoraTask]:
    def make(job_id: str, **fields: object) -> LoraTask:
        defaults = {
            "rank": 4,
            "batch_size": 4,
            "sequence_length": 24,
            "target_modules": LLAMA_TARGET_MODULES,
            "dataset": "ragged.jsonl",
            "total_samples": 10_000,
            "learning_rate": 1e-2,
            "max_gradient_norm": 1e3,
        }
        return LoraTask(job_id=job_id, **(defaults | fields))

    return make
