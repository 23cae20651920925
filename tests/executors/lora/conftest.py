"""More tiny base models, and the datasets that the engine's tests share."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LLAMA_TARGET_MODULES, LoraTask
from executors.lora.shared_base import SharedBase


@pytest.fixture(scope="session")
def grouped_query_directory(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose four heads share two key heads, with biases."""
    directory = tmp_path_factory.mktemp("grouped-query")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attention_bias=True,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def gpt2_directory(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(2)
    config = GPT2Config(
        vocab_size=320, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.2
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(directory)
    return directory


SMALL_DECODER = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "sliding_window": 64,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="session")
def gemma2_directory(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 2 whose scores reach far beyond its soft cap."""
    directory = tmp_path_factory.mktemp("gemma2")
    torch.manual_seed(3)
    config = Gemma2Config(**SMALL_DECODER, attn_logit_softcapping=1.0, query_pre_attn_scalar=8)
    Gemma2ForCausalLM(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def gpt_oss_directory(llama_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gpt-oss whose sinks take much of the attention."""
    directory = tmp_path_factory.mktemp("gpt-oss")
    torch.manual_seed(4)
    config = GptOssConfig(**SMALL_DECODER, num_local_experts=4, num_experts_per_tok=2)
    model = GptOssForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.uniform_(0, 2)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets: ``long`` has texts of 64 tokens or more, ``ragged`` pairs of any length."""
    folder = tmp_path_factory.mktemp("datasets")
    words = ["def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda"]
    draw = random.Random(5)

    def text(fewest: int, most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(fewest, most)))

    long = [{"text": text(70, 90)} for _ in range(24)]
    ragged = [{"prompt": text(1, 6), "completion": text(1, 25)} for _ in range(24)]
    for name, records in (("long", long), ("ragged", ragged)):
        lines = (json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def datasets(dataset_folder: Path) -> DatasetRoot:
    return DatasetRoot(dataset_folder)


@pytest.fixture
def engine(base: SharedBase, datasets: DatasetRoot) -> FusedEngine:
    return FusedEngine(base, datasets)


@pytest.fixture(scope="session")
def make_task() -> Callable[..., LoraTask]:
    def make(job_id: str, **fields: object) -> LoraTask:
        defaults = {
            "rank": 4,
            "batch_size": 2,
            "sequence_length": 24,
            "target_modules": LLAMA_TARGET_MODULES,
            "dataset": "long.jsonl",
            "total_samples": 10_000,
            "learning_rate": 1e-2,
        }
        return LoraTask(job_id=job_id, **(defaults | fields))

    return make
