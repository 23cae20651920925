"""The least memory of a task."""

import pytest

from schemas.cells import BaseDimensions
from schemas.lora import LoraHyperparameters
from solvers.auction.market.demand import least_memory_gib

BASE = BaseDimensions(
    hidden_features=8, intermediate_features=16, key_value_features=4, layers=3, vocabulary_size=100
)
SHAPE = LoraHyperparameters(rank=2, batch_size=4, sequence_length=10, target_modules=("q_proj", "down_proj"))
BYTES_PER_GIB = 2**30


def least_bytes(**changes: object) -> float:
    return least_memory_gib(SHAPE.model_copy(update=changes), BASE) * BYTES_PER_GIB


def test_memory_is_adapter_and_kept_tokens() -> None:
    parameters = 3 * 2 * ((8 + 8) + (16 + 8))
    per_token = 2 * (4 * 8 + 2 * 4 + 3 * 16) * 2 + 4 * 100
    assert least_bytes() == 16 * parameters + 40 * per_token


@pytest.mark.parametrize("more", [{"rank": 4}, {"batch_size": 8}, {"sequence_length": 20}], ids=str)
def test_it_grows_with_whatever_makes_a_task_larger(more: dict[str, int]) -> None:
    assert least_bytes(**more) > least_bytes()


def test_layers_that_a_llama_lacks_add_nothing() -> None:
    assert least_bytes(target_modules=("q_proj", "down_proj", "c_attn")) == least_bytes()
