"""Rows of docs/results/base-models.md still hold for a sample of architectures; a drill probes all."""

from pathlib import Path

import pytest
import torch
import transformers

from tests.support.base_models.document import PATH, render, verdicts
from tests.support.base_models.small import CannotBuildError, small_model
from tests.support.base_models.survey import Row, architectures, probe_architecture

SAMPLE = {
    ("language model", "llama"): ("taken", ""),
    ("language model", "gemma2"): ("taken", ""),
    ("language model", "gpt_oss"): ("taken", ""),
    ("language model", "phimoe"): ("taken", ""),
    ("language model", "qwen2_moe"): ("taken", ""),
    ("language model", "modernbert-decoder"): ("taken", ""),
    ("language model", "lfm2"): ("refused", "leaks"),
    ("language model", "doge"): ("refused", "attention_argument"),
    ("language model", "deepseek_v4"): ("refused", "packed_raises"),
    ("language model", "mamba"): ("refused", "unfit"),
    ("classifier", "bert"): ("taken", ""),
    ("classifier", "gemma2"): ("taken", ""),
    ("classifier", "minimax"): ("refused", "leaks"),
    ("classifier", "albert"): ("refused", "unfit"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def page() -> str:
    return PATH.read_text(encoding="utf-8")


def test_the_page_has_every_architecture_of_this_transformers(page: str) -> None:
    assert f"transformers {transformers.__version__}," in page
    known = {(task, model_type) for task, model_type, _ in architectures()}
    assert verdicts(page).keys() == known


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model_type"), SAMPLE)
def test_a_sample_of_the_page_holds(page: str, task: str, model_type: str) -> None:
    (known,) = [each for each in architectures() if each[:2] == (task, model_type)]
    row = probe_architecture(*known)
    assert (row.verdict, row.reason) == SAMPLE[task, model_type], row.detail
    assert verdicts(page)[task, model_type] == (row.verdict, row.reason)


def test_small_models_have_all_layers_and_windows() -> None:
    lfm2 = small_model("lfm2", transformers.Lfm2ForCausalLM, seed=1)
    assert set(lfm2.config.layer_types) == {"conv", "full_attention"}
    gemma2 = small_model("gemma2", transformers.Gemma2ForCausalLM, seed=1)
    assert set(gemma2.config.layer_types) == {"sliding_attention", "full_attention"}
    assert gemma2.config.sliding_window == 16
    assert gemma2.num_parameters() < 1_000_000


def test_unbuildable_model_has_reason() -> None:
    with pytest.raises(CannotBuildError, match="Input language unknown"):
        small_model("xmod", transformers.XmodForCausalLM, seed=1)


def test_a_page_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        Row("language model", "a", "AForCausalLM", "taken", bit_identical=False),
        Row("language model", "b", "BForCausalLM", "refused", "leaks", "a | b " + "long " * 60),
        Row("classifier", "a", "AForSequenceClassification", "not built", detail="no such size"),
    ]
    page = render(rows, "1a2b3c")
    assert "commit `1a2b3c`" in page
    assert verdicts(page) == {
        ("language model", "a"): ("taken", ""),
        ("language model", "b"): ("refused", "leaks"),
        ("classifier", "a"): ("not built", ""),
    }
