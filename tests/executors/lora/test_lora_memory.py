"""The least memory that the auction counts is never more than what the engine holds, nor far from it."""

from collections.abc import Callable

import pytest

from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LLAMA_TARGET_MODULES, LoraTask
from executors.lora.shared_base import SharedBase
from schemas.cells import BaseDimensions
from schemas.lora import LoraHyperparameters
from solvers.auction.market.demand import least_memory_gib


def used_gib(base: SharedBase, datasets: DatasetRoot, task: LoraTask) -> float:
    """Return the memory that the executor measures in a task's first step, in GiB."""
    engine = FusedEngine(base, datasets)
    engine.attach(task)
    with engine.measured(task.job_id) as taken:
        engine.step()
    return taken.gib


@pytest.mark.parametrize("modules", [LLAMA_TARGET_MODULES, ("q_proj", "v_proj"), ("down_proj",)], ids=len)
@pytest.mark.parametrize(("batch_size", "sequence_length"), [(2, 16), (8, 64)])
def test_estimate_is_lower_bound_within_factor_three(
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
    least_gib = least_memory_gib(LoraHyperparameters(rank=8, **shape), dimensions)
    taken = used_gib(base, datasets, make_task("j", rank=8, **shape))
    assert taken / 3 < least_gib <= taken


def test_only_stepping_task_is_counted(
    base: SharedBase, datasets: DatasetRoot, make_task: Callable[..., LoraTask]
) -> None:
    alone = used_gib(base, datasets, make_task("j"))
    engine = FusedEngine(base, datasets)
    engine.attach(make_task("other", rank=16, batch_size=16))
    engine.attach(make_task("j"))
    with engine.measured("j") as taken:
        engine.step(["j"])
    assert taken.gib == alone


def test_equal_step_takes_no_more_memory(
    base: SharedBase, datasets: DatasetRoot, make_task: Callable[..., LoraTask]
) -> None:
    engine = FusedEngine(base, datasets)
    engine.attach(make_task("j", dataset="ragged.jsonl"))
    taken: list[tuple[tuple[int, int], float]] = []
    for _ in range(12):
        size = engine.upcoming_size("j")
        with engine.measured("j") as measured:
            engine.step()
        taken.append((size, measured.gib))
    assert len({gib for _, gib in taken}) > 1
    for (tokens, loss_rows), gib in taken:
        for (more_tokens, more_loss_rows), more_gib in taken:
            if tokens <= more_tokens and loss_rows <= more_loss_rows:
                assert gib <= more_gib
