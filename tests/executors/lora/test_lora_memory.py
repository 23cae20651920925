"""The least memory that the auction counts is never more than what the engine holds, nor far from it."""

from collections.abc import Callable

import pytest
import torch

from executors.lora.base_model import SharedBase
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.task import LLAMA_TARGET_MODULES, LoraTask
from schemas.cells import BaseDimensions
from schemas.lora import LoraHyperparameters
from solvers.auction.market.memory import least_memory_gib

NUMBERS_PER_PARAMETER = 4
"""Itself, its gradient, two moments; each of 4 bytes."""


def held_bytes(base: SharedBase, datasets: DatasetRoot, task: LoraTask) -> int:
    """The state of a task, and what autograd keeps for its backward pass beside the base's weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in base.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    engine = FusedEngine(base, datasets)
    engine.attach(task)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        engine.step()
    parameters = len(engine.detach(task.job_id).parameters)
    return 4 * NUMBERS_PER_PARAMETER * parameters + sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("modules", [LLAMA_TARGET_MODULES, ("q_proj", "v_proj"), ("down_proj",)], ids=len)
@pytest.mark.parametrize(("batch_size", "sequence_length"), [(2, 16), (8, 64)])
def test_it_is_a_lower_bound_within_a_factor_of_three(
    base: SharedBase,
    datasets: DatasetRoot,
    make_task: Callable[..., LoraTask],
    modules: tuple[str, ...],
    batch_size: int,
    sequence_length: int,
) -> None:
    shape = {"batch_size": batch_size, "sequence_length": sequence_length, "target_modules": modules}
    config = base.model.config
    dimensions = BaseDimensions(
        hidden_features=config.hidden_size,
        intermediate_features=config.intermediate_size,
        key_value_features=config.hidden_size,
        layers=config.num_hidden_layers,
        vocabulary_size=config.vocab_size,
        activation_bytes=4,
    )
    least_bytes = least_memory_gib(LoraHyperparameters(rank=8, **shape), dimensions) * 2**30
    held = held_bytes(base, datasets, make_task("j", rank=8, **shape))
    assert held / 3 < least_bytes <= held
