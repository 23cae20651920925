"""Each adapter's gradient is that of its task alone, and that of PEFT."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from executors.lora.base_model import load_base
from executors.lora.dataset import Cursor, DatasetRoot, next_indices
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LoraTask
from executors.lora.shared_base import SharedBase
from tests.support.checkpoints import save
from tests.support.examples import examples

# Summing in another order is all that may differ between a task alone and the same task in company.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}

MakeTask = Callable[..., LoraTask]

TARGETS = {"gpt2": ("c_attn",), "gpt_oss": ("q_proj", "k_proj", "v_proj", "o_proj")}
"""Target modules of families without Llama's layers."""


def steps_alone_and_fused(
    base: SharedBase, datasets: DatasetRoot, tasks: list[LoraTask], warm_steps: int = 1
) -> list[tuple[float, float, dict[str, Tensor], dict[str, Tensor]]]:
    """For each task: (loss alone, loss fused, gradients alone, gradients fused), after some steps alone.

    The steps before make B differ from zero, so that A gets a gradient as well.
    """
    fused = FusedEngine(base, datasets)
    results = []
    for task in tasks:
        alone = FusedEngine(base, datasets)
        alone.attach(task)
        for _ in range(warm_steps):
            alone.step()
        fused.attach(task, alone.state(task.job_id))
        results.append((alone.step()[task.job_id], alone.gradients(task.job_id)))
    losses = fused.step()
    return [
        (loss, losses[task.job_id], gradients, fused.gradients(task.job_id))
        for task, (loss, gradients) in zip(tasks, results, strict=True)
    ]


def assert_same(results: list[tuple[float, float, dict[str, Tensor], dict[str, Tensor]]]) -> None:
    for loss_alone, loss_fused, alone, fused in results:
        assert loss_fused == pytest.approx(loss_alone, rel=1e-5)
        assert any(gradient.abs().max() > 1e-4 for gradient in alone.values())
        torch.testing.assert_close(fused, alone, **TOLERANCE)


def test_equal_batches_give_each_adapter_its_own_gradient(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    tasks = [make_task(f"job-{k}", seed=k, alpha=4.0 * (k + 1), dropout=0.1 * k) for k in range(4)]
    assert_same(steps_alone_and_fused(base, datasets, tasks))


def test_mixed_targets_keep_gradients_separate(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    tasks = [
        make_task("attention", target_modules=("q_proj", "v_proj"), rank=2, dataset="ragged.jsonl"),
        make_task("everything", rank=7, dropout=0.2, batch_size=3),
        make_task("one-layer", target_modules=("layers.1.mlp.down_proj",), batch_size=1),
        make_task("outer-two", target_modules=("q_proj", "up_proj"), rank=4, dataset="ragged.jsonl"),
    ]
    assert_same(steps_alone_and_fused(base, datasets, tasks))


@settings(
    max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(1, 9),
            st.integers(1, 3),
            st.integers(2, 40),
            st.sampled_from([0.0, 0.3]),
            st.sampled_from(["long.jsonl", "ragged.jsonl"]),
        ),
        min_size=2,
        max_size=4,
    )
)
def test_any_mix_keeps_gradients_separate(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask, shapes: list[tuple]
) -> None:
    tasks = [
        make_task(
            f"job-{k}",
            seed=k,
            rank=rank,
            batch_size=batch_size,
            sequence_length=length,
            dropout=dropout,
            dataset=dataset,
        )
        for k, (rank, batch_size, length, dropout, dataset) in enumerate(shapes)
    ]
    for loss_alone, loss_fused, alone, fused in steps_alone_and_fused(base, datasets, tasks):
        assert loss_fused == pytest.approx(loss_alone, rel=1e-5)
        torch.testing.assert_close(fused, alone, **TOLERANCE)


@pytest.mark.parametrize("family", ["llama", "grouped_query", "gpt2", "gemma2", "gpt_oss"])
def test_loss_and_gradients_are_those_of_peft(
    family: str,
    datasets: DatasetRoot,
    make_task: MakeTask,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    directory = request.getfixturevalue(f"{family}_directory")
    base = load_base(directory)
    targets = {"target_modules": TARGETS[family]} if family in TARGETS else {}
    task = make_task("job", dataset="ragged.jsonl", batch_size=3, max_gradient_norm=1e6, **targets)
    other = make_task("other", rank=2, **targets)
    engine = FusedEngine(base, datasets)
    engine.attach(task)
    engine.attach(other)
    engine.step()
    checkpoint = save(tmp_path, base, engine.state("job"))
    loss = engine.step()["job"]

    reference = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    reference = PeftModel.from_pretrained(reference, checkpoint, is_trainable=True)
    token_losses = []
    with datasets.open(task.dataset) as dataset:
        indices, _ = next_indices(len(dataset), task.seed, Cursor(0, 3), 3)
        for index in indices:
            sequence = dataset[index].tokenize(base.tokenizer, task.sequence_length)
            input_ids = torch.tensor([sequence.token_ids])
            logits = reference(input_ids=input_ids).logits[0]
            first = sequence.loss_start
            token_losses.append(
                torch.nn.functional.cross_entropy(
                    logits[first - 1 : -1], input_ids[0, first:], reduction="none"
                )
            )
    reference_loss = torch.cat(token_losses).mean()
    reference_loss.backward()

    assert loss == pytest.approx(reference_loss.item(), rel=1e-5)
    reference_gradients = {
        name.removeprefix("base_model.model.").replace(".default", ""): parameter.grad
        for name, parameter in reference.named_parameters()
        if parameter.grad is not None
    }
    torch.testing.assert_close(engine.gradients("job"), reference_gradients, **TOLERANCE)


def test_clipping_is_for_each_adapter_alone(engine: FusedEngine, make_task: MakeTask) -> None:
    limits = {"tight": 1e-3, "loose": 1e5, "free": 1e6}
    for name, limit in limits.items():
        engine.attach(make_task(name, max_gradient_norm=limit))
    engine.step()
    norms = {
        name: torch.cat([g.flatten() for g in engine.gradients(name).values()]).norm().item()
        for name in limits
    }
    assert norms["tight"] == pytest.approx(1e-3, rel=1e-3)
    assert norms["loose"] == pytest.approx(norms["free"], rel=1e-5)
    assert norms["free"] > 0.01


def test_infinite_gradient_harms_no_other_task(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask
) -> None:
    alone = FusedEngine(base, datasets)
    alone.attach(make_task("healthy"))
    expected = alone.step()["healthy"], alone.step()["healthy"]

    engine = FusedEngine(base, datasets)
    engine.attach(make_task("healthy"))
    engine.attach(make_task("sick", alpha=65_536.0, seed=1))
    sick = engine.state("sick")
    sick.parameters.fill_(1e35)
    engine.detach("sick")
    engine.attach(sick.task, sick)
    first, second = engine.step(), engine.step()
    assert not torch.tensor(first["sick"]).isfinite()
    assert (first["healthy"], second["healthy"]) == pytest.approx(expected, rel=1e-5)
    after = engine.state("sick")
    assert torch.equal(after.parameters, sick.parameters)
    assert (after.optimizer_steps, after.micro_batches) == (0, 2)
