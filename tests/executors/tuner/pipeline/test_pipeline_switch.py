"""A switch overlaps with the training of both tasks, and changes no bit of either."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LoraTask
from executors.lora.task_files import decode_state
from tests.support import pipeline_scenarios as scenarios
from tests.support.pipeline_ranks import run_ranks
from tests.support.pipeline_spans import Span, gap_s

MakeTask = Callable[..., LoraTask]
Switched = tuple[list[dict[str, Any]], dict[str, bytes]]
Switch = Callable[..., Switched]


@pytest.fixture
def switch(deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path) -> Switch:
    """Train a, then b, then c, the last in the direction of a."""

    def run(world: int, direction: str, *, overlap: bool, **options: Any) -> Switched:
        tasks = [
            make_task("a", dropout=0.1, max_gradient_norm=0.05),
            make_task("b", rank=3, dataset="long.jsonl", max_gradient_norm=0.05, seed=1),
            make_task("c", target_modules=("q_proj",), seed=2),
        ]
        name = f"run-{len(list(tmp_path.iterdir()))}"
        results = run_ranks(
            scenarios.train_and_switch,
            world,
            deep_directory,
            dataset_root,
            tmp_path,
            jobs=[
                {"task": task.model_dump_json(), "micro_batches": 2, "direction": towards}
                for task, towards in zip(tasks, ("forward", direction, "forward"), strict=True)
            ],
            steps=3,
            overlap=overlap,
            name=name,
            options=options,
        )
        files = {
            f"{task.job_id}/{path.name}": path.read_bytes()
            for task in tasks
            for path in (tmp_path / f"{name}-{task.job_id}").iterdir()
        }
        assert all(result["steps"] == results[0]["steps"] for result in results)
        return results, files

    return run


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_overlap_changes_no_bit(world: int, direction: str, switch: Switch) -> None:
    plain, plain_files = switch(world, direction, overlap=False)
    overlapped, overlapped_files = switch(world, direction, overlap=True)
    assert overlapped_files == plain_files
    assert [result["steps"] for result in overlapped] == [result["steps"] for result in plain]


def test_switched_task_matches_engine(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    base = load_base(deep_directory)
    tasks = [make_task("a"), make_task("b", seed=1)]
    run_ranks(
        scenarios.train_and_switch,
        4,
        deep_directory,
        dataset_root,
        tmp_path,
        jobs=[
            {"task": task.model_dump_json(), "direction": direction}
            for task, direction in zip(tasks, ("forward", "reverse"), strict=True)
        ],
        steps=3,
        overlap=True,
        name="run",
    )
    for task in tasks:
        engine = FusedEngine(base, DatasetRoot(dataset_root))
        engine.attach(task)
        for _ in range(3):
            engine.step()
        expected = engine.detach(task.job_id)
        folder = tmp_path / f"run-{task.job_id}"
        state = decode_state({path.name: path.read_bytes() for path in folder.iterdir()}, base)
        assert torch.equal(state.parameters, expected.parameters)
        assert torch.equal(state.first_moment, expected.first_moment)
        assert torch.equal(state.second_moment, expected.second_moment)


def spans_of(results: list[dict[str, Any]]) -> list[Span]:
    return [Span(**span) for result in results for span in result["spans"]]


@pytest.mark.long
def test_next_task_loads_from_last_rank_on(
    switch: Switch,
) -> None:
    results, _ = switch(4, "reverse", overlap=True)
    spans = spans_of(results)
    first = min((s for s in spans if s.job_id == "b" and s.kind == "forward"), key=lambda s: s.start_s)
    assert first.rank == 3
    ended_s = {
        rank: max(s.end_s for s in spans if s.rank == rank and s.job_id == "a" and s.kind == "backward")
        for rank in range(4)
    }
    assert ended_s[3] < ended_s[2] < ended_s[1] < ended_s[0]
    # Nothing of A is updated before the whole gradient is known; B does not wait for that.
    assert ended_s[0] <= min(s.end_s for s in spans if s.job_id == "a" and s.kind == "store")
    for rank in range(4):
        load = next(s for s in spans if s.rank == rank and s.job_id == "b" and s.kind == "load")
        assert load.start_s >= ended_s[rank]


def test_first_rank_ends_old_task_during_next(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    results = run_ranks(
        scenarios.hold_back_the_first_rank,
        4,
        deep_directory,
        dataset_root,
        tmp_path,
        jobs=[
            {"task": make_task("a").model_dump_json()},
            {"task": make_task("b").model_dump_json(), "direction": "reverse"},
        ],
    )
    between_s, _ = gap_s(spans_of(results), "a", "b")
    assert between_s < 0


@pytest.mark.long
def test_without_overlap_next_task_waits_for_storage(switch: Switch) -> None:
    spans = spans_of(switch(4, "forward", overlap=False)[0])
    between_s, idle_s = gap_s(spans, "a", "b")
    assert between_s > 0
    assert min(idle_s) > 0
    first_s = min(s.start_s for s in spans if s.job_id == "b" and s.kind == "forward")
    stored_s = [s.end_s for s in spans if s.job_id == "a" and s.kind == "store" and s.rank == 0]
    assert max(stored_s) <= first_s
