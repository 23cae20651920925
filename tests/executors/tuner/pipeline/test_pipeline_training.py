"""A job comes to the same weights over any number of stages as in the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LoraTask, TaskState
from executors.lora.shared_base import SharedBase
from executors.lora.task_files import decode_state, encode_state
from tests.support import pipeline_scenarios as scenarios
from tests.support.examples import long
from tests.support.pipeline_ranks import run_ranks

STEPS = 4
MakeTask = Callable[..., LoraTask]
Train = Callable[..., tuple[list[dict[str, Any]], TaskState]]


@pytest.fixture(scope="session")
def deep_base(deep_directory: Path) -> SharedBase:
    return load_base(deep_directory)


def read_state(folder: Path, base: SharedBase) -> TaskState:
    return decode_state({path.name: path.read_bytes() for path in folder.iterdir()}, base)


@pytest.fixture
def train(deep_directory: Path, deep_base: SharedBase, dataset_root: Path, tmp_path: Path) -> Train:
    def run(world: int, task: LoraTask, *, steps: int = STEPS, **arguments: Any) -> tuple[list, TaskState]:
        name = f"{world}-{len(list(tmp_path.iterdir()))}"
        results = run_ranks(
            scenarios.train,
            world,
            deep_directory,
            dataset_root,
            tmp_path,
            task=task.model_dump_json(),
            steps=steps,
            name=name,
            **arguments,
        )
        state = read_state(tmp_path / name, deep_base)
        assert_same(state, read_state(tmp_path / f"{name}-after", deep_base))  # evaluation changes nothing
        assert all(result["losses"] == results[0]["losses"] for result in results)
        return results, state

    return run


def assert_same(left: TaskState, right: TaskState) -> None:
    assert left.task == right.task
    assert vars(left).keys() == vars(right).keys()
    for name, value in vars(left).items():
        other = getattr(right, name)
        assert torch.equal(value, other) if isinstance(value, Tensor) else value == other, name


def distance(left: Tensor, right: Tensor) -> float:
    """L2 norm of the difference, relative to that of the second."""
    return float((left - right).norm() / right.norm())


def engine_run(
    base: SharedBase, dataset_root: Path, task: LoraTask, steps: int = STEPS, state: TaskState | None = None
) -> tuple[list[float], TaskState]:
    engine = FusedEngine(base, DatasetRoot(dataset_root))
    engine.attach(task, state)
    losses = [engine.step()[task.job_id] for _ in range(steps)]
    return losses, engine.detach(task.job_id)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_pipeline_with_whole_batches_matches_engine(
    world: int, train: Train, deep_base: SharedBase, dataset_root: Path, make_task: MakeTask
) -> None:
    task = make_task("job")
    losses, expected = engine_run(deep_base, dataset_root, task)
    results, state = train(world, task, micro_batches=1)
    assert results[0]["losses"] == losses
    assert_same(state, expected)


@pytest.mark.long
def test_micro_batches_differ_only_by_rounding(
    train: Train, deep_base: SharedBase, dataset_root: Path, make_task: MakeTask
) -> None:
    task = make_task("job", max_gradient_norm=0.05, weight_decay=0.01, batch_size=6)
    losses, expected = engine_run(deep_base, dataset_root, task)
    results, state = train(4, task, micro_batches=3)
    assert results[0]["losses"] == pytest.approx(losses, rel=1e-5)
    assert min(results[0]["norms"]) > task.max_gradient_norm
    assert state.samples_done == expected.samples_done
    assert state.cursor == expected.cursor
    torch.testing.assert_close(state.parameters, expected.parameters, rtol=0, atol=1e-2 * task.learning_rate)
    assert distance(state.parameters, expected.parameters) < 1e-5
    assert distance(state.first_moment, expected.first_moment) < 1e-4


@pytest.mark.long
def test_stages_and_direction_change_no_bit(train: Train, make_task: MakeTask) -> None:
    task = make_task("job", dropout=0.1, max_gradient_norm=0.05, batch_size=5)
    results, expected = train(1, task, micro_batches=3)
    for world, direction in ((2, "reverse"), (3, "forward"), (4, "reverse"), (5, "forward")):
        others, state = train(world, task, micro_batches=3, direction=direction)
        assert_same(state, expected)
        assert others[0]["losses"] == results[0]["losses"]
        assert others[0]["norms"] == results[0]["norms"]
        assert others[0]["evaluated"] == results[0]["evaluated"]


@pytest.mark.long
def test_pipelines_sharing_batch_match_one(train: Train, make_task: MakeTask) -> None:
    task = make_task("job", dropout=0.1, max_gradient_norm=0.05, batch_size=5)
    results, expected = train(2, task, micro_batches=3)
    for direction in ("forward", "reverse"):
        others, state = train(4, task, micro_batches=2, direction=direction, options={"stages": 2})
        assert others[0]["losses"] == pytest.approx(results[0]["losses"], rel=1e-5)
        assert others[0]["evaluated"] == pytest.approx(results[0]["evaluated"], rel=1e-5)
        assert others[0]["right"] == results[0]["right"]
        assert state.cursor == expected.cursor
        assert distance(state.parameters, expected.parameters) < 1e-5


@pytest.mark.long
def test_pipeline_may_get_no_sequence(train: Train, make_task: MakeTask) -> None:
    task = make_task("job", batch_size=1)
    results, expected = train(2, task)
    others, state = train(4, task, options={"stages": 2})
    assert others[0]["losses"] == results[0]["losses"]
    assert_same(state, expected)


@pytest.mark.long
def test_activations_that_are_computed_again_change_no_bit(train: Train, make_task: MakeTask) -> None:
    task = make_task("job", dropout=0.1)
    _, expected = train(2, task, micro_batches=2)
    _, state = train(2, task, micro_batches=2, checkpoints_activations=True)
    assert_same(state, expected)


@pytest.mark.long
def test_stages_without_adapters_are_valid(
    train: Train, deep_base: SharedBase, dataset_root: Path, make_task: MakeTask
) -> None:
    for targets in (("layers.2.mlp.down_proj",), ("layers.0.self_attn.q_proj", "layers.4.mlp.up_proj")):
        task = make_task("job", target_modules=targets)
        _, expected = engine_run(deep_base, dataset_root, task)
        _, state = train(4, task, micro_batches=1)
        assert_same(state, expected)


def test_gradients_are_those_of_the_engine(
    train: Train, deep_base: SharedBase, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task("job", batch_size=6)
    engine = FusedEngine(deep_base, DatasetRoot(dataset_root))
    engine.attach(task)
    for _ in range(2):
        engine.step()
    results, _ = train(4, task, micro_batches=3, steps=2)
    pieces = [load_file(tmp_path / f"4-0-{rank}")["gradient"] for rank in range(4)]
    layout_order = torch.cat(pieces)
    gradients = engine.gradients("job")
    norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
    assert float(layout_order.norm()) == pytest.approx(float(norm), rel=1e-5)
    assert results[0]["norms"][-1] == pytest.approx(engine.gradient_norm("job"), rel=1e-5)


@pytest.mark.parametrize("family", ["gpt2", *long("mistral", "qwen2", "qwen3")])
def test_other_families_match_engine_over_stages(
    family: str,
    make_model: Callable[[str], Path],
    dataset_root: Path,
    make_task: MakeTask,
    tmp_path: Path,
) -> None:
    directory = make_model(family)
    base = load_base(directory)
    targets = {"target_modules": ("c_attn",)} if family == "gpt2" else {}
    task = make_task("job", **targets)
    losses, expected = engine_run(base, dataset_root, task)
    results = run_ranks(
        scenarios.train,
        3,
        directory,
        dataset_root,
        tmp_path,
        task=task.model_dump_json(),
        steps=STEPS,
        name=family,
    )
    assert results[0]["losses"] == losses
    assert_same(read_state(tmp_path / family, base), expected)


def test_checkpoint_moves_between_pipeline_engine_and_peft(
    train: Train,
    deep_base: SharedBase,
    deep_directory: Path,
    dataset_root: Path,
    make_task: MakeTask,
    tmp_path: Path,
) -> None:
    task = make_task("job")
    _, expected = engine_run(deep_base, dataset_root, task, steps=6)
    _, first = engine_run(deep_base, dataset_root, task, steps=2)
    (tmp_path / "two").mkdir()
    for name, content in encode_state(first, deep_base).items():
        (tmp_path / "two" / name).write_bytes(content)
    results, middle = train(4, task, steps=2, checkpoint="two", direction="reverse")
    _, last = engine_run(deep_base, dataset_root, task, steps=2, state=middle)
    assert_same(last, expected)

    folder = tmp_path / "peft"
    folder.mkdir()
    for name, content in encode_state(middle, deep_base).items():
        (folder / name).write_bytes(content)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(deep_directory), folder)
    dataset = DatasetRoot(dataset_root).open("ragged.jsonl")
    total = tokens = 0.0
    for index in range(5):
        sequence = dataset[index].tokenize(deep_base.tokenizer, task.sequence_length)
        ids = torch.tensor([sequence.token_ids])
        labels = ids.clone()
        labels[:, : sequence.loss_start] = -100
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * sequence.loss_tokens
        tokens += sequence.loss_tokens
    assert results[0]["evaluated"] == [pytest.approx(total / tokens, rel=1e-5)] * 2


@pytest.mark.long
def test_small_and_last_batches_are_trained(
    train: Train, deep_base: SharedBase, dataset_root: Path, make_task: MakeTask
) -> None:
    task = make_task("job", batch_size=3, total_samples=7)
    _, expected = engine_run(deep_base, dataset_root, task, steps=3)
    results, state = train(4, task, micro_batches=8, steps=3)
    assert results[0]["finished"]
    assert state.samples_done == 7
    torch.testing.assert_close(state.parameters, expected.parameters, rtol=0, atol=1e-2 * task.learning_rate)


def test_layers_are_cut_by_their_parameters(train: Train, make_task: MakeTask) -> None:
    results, _ = train(4, make_task("job"), steps=1)
    assert results[0]["partition"] == [[0, 2], [2, 3], [3, 4], [4, 5]]
