"""Each failure of a pipeline ends within a time limit, with an error message."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from executors.lora.lora_task import LoraTask
from executors.tuner.pipeline.preparation import PipelinePlan
from tests.support import pipeline_scenarios as scenarios
from tests.support.pipeline_ranks import RunningRanks, Scenario, run_ranks

MakeTask = Callable[..., LoraTask]


@contextmanager
def running(
    scenario: Scenario, world: int, directory: Path, dataset_root: Path, scratch: Path, **arguments: Any
) -> Iterator[RunningRanks]:
    ranks = RunningRanks(scenario, world, directory, dataset_root, scratch, **arguments)
    try:
        yield ranks
    finally:
        ranks.close()


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_killed_rank_ends_others_at_once(
    lost: int, deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    with running(
        scenarios.lose_a_rank,
        4,
        deep_directory,
        dataset_root,
        tmp_path,
        task=make_task("job").model_dump_json(),
        micro_batches=2,
        lost=lost,
        signal="SIGKILL",
        peer_timeout_s=60.0,
    ) as ranks:
        results = ranks.results(timeout_s=20.0)
    assert results[lost] == {"error": "killed"}
    for rank in set(range(4)) - {lost}:
        assert results[rank]["type"] == "StageLostError"
        assert "of the pipeline" in results[rank]["text"]
        assert results[rank]["after_s"] < 10.0


def test_hanging_rank_ends_others_after_timeout(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    with running(
        scenarios.lose_a_rank,
        4,
        deep_directory,
        dataset_root,
        tmp_path,
        task=make_task("job").model_dump_json(),
        lost=2,
        signal="SIGSTOP",
        peer_timeout_s=1.5,
    ) as ranks:
        words = {rank: ranks.word(rank, timeout_s=20.0) for rank in (0, 1, 3)}
    assert all(word["type"] == "StageLostError" for word in words.values())
    assert "rank 2 of the pipeline is gone or sends no activations within 1.5 s" in words[3]["text"]
    assert all(word["after_s"] < 5.0 for word in words.values())


@pytest.mark.long
def test_remaining_ranks_meet_again(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task("job").model_dump_json()
    with running(scenarios.go_on_with_fewer, 4, deep_directory, dataset_root, tmp_path, task=task) as ranks:
        *left, lost = ranks.results(timeout_s=30.0)
    assert lost == {"error": "killed"}
    assert left[0]["losses"] == left[1]["losses"] == left[2]["losses"]
    assert len(left[0]["losses"]) == 2


@pytest.mark.parametrize("lost", [0, 3])
def test_rank_lost_in_switch_fails_it(
    lost: int, deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    with running(
        scenarios.lose_a_rank_in_a_switch,
        4,
        deep_directory,
        dataset_root,
        tmp_path,
        jobs=[
            {"task": make_task("a").model_dump_json()},
            {"task": make_task("b").model_dump_json(), "direction": "reverse"},
        ],
        lost=lost,
        peer_timeout_s=3.0,
    ) as ranks:
        results = ranks.results(timeout_s=20.0)
    for rank in set(range(4)) - {lost}:
        assert results[rank]["type"] == "StageLostError"
        assert results[rank]["after_s"] < 10.0


def test_absent_rank_is_awaited_until_timeout(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    with running(
        scenarios.refuse,
        2,
        deep_directory,
        dataset_root,
        tmp_path,
        task=make_task("job").model_dump_json(),
        options={"join_timeout_s": 1.0},
    ) as ranks:
        ranks.processes[1].kill()
        word = ranks.word(0, timeout_s=20.0)
    assert word["type"] == "StageLostError"
    assert "rank 0: not all 2 ranks of the pipeline have joined within 1 s" in word["text"]


def test_more_stages_than_layers_are_refused(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    results = run_ranks(
        scenarios.refuse, 6, deep_directory, dataset_root, tmp_path, task=make_task("job").model_dump_json()
    )
    for result in results:
        assert result["type"] == "PartitionError"
        assert result["text"] == "6 stages for 5 layers: between 1 and 5 are possible"


def test_ranks_that_do_not_train_the_same_fail(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    results = run_ranks(
        scenarios.refuse,
        2,
        deep_directory,
        dataset_root,
        tmp_path,
        task=make_task("job").model_dump_json(),
        last_rank={"checkpoints_activations": True},
    )
    for result in results:
        assert result["type"] == "ValueError"
        assert result["text"] == "job: the ranks differ in the task, its data or their progress"


def test_target_without_layer_is_refused(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    results = run_ranks(
        scenarios.refuse,
        2,
        deep_directory,
        dataset_root,
        tmp_path,
        task=make_task("job", target_modules=("nothing",)).model_dump_json(),
    )
    for result in results:
        assert result["type"] == "ValueError"
        assert "no layer is called 'nothing'" in result["text"]


def test_invalid_loss_updates_no_stage(
    deep_directory: Path, dataset_root: Path, make_task: MakeTask, tmp_path: Path
) -> None:
    results = run_ranks(
        scenarios.spoil, 3, deep_directory, dataset_root, tmp_path, task=make_task("job").model_dump_json()
    )
    for result in results:
        assert (result["loss"], result["norm"]) == ("nan", "nan")
        assert result["same"]
    assert results[0]["steps"] == [1, 2]


def test_a_plan_needs_a_micro_batch(make_task: MakeTask) -> None:
    with pytest.raises(ValueError, match="job: 0 micro-batches; at least 1 is needed"):
        PipelinePlan(make_task("job"), 0)
