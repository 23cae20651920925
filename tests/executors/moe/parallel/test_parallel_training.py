"""A model whose experts are spread over ranks trains as one on whose every rank all experts are."""

from collections.abc import Sequence
from typing import Any

import pytest

from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord
from tests.executors.moe.conftest import RunRanks
from tests.support import parallel_scenarios as scenarios
from tests.support.micro_ops import overlaps, waited_behind


def records(result: dict[str, Any]) -> list[MicroOpRecord]:
    return [MicroOpRecord(**record | {"kind": CollectiveKind(record["kind"])}) for record in result["trace"]]


@pytest.mark.parametrize(
    ("tokens", "experts", "per_device", "chunks"),
    [
        pytest.param([13, 7], 2, 1, 1, id="an expert on each rank"),
        pytest.param([13, 7, 0, 1], 4, 1, 2, id="a rank without tokens, and chunks"),
        pytest.param([13, 7, 5, 1], 4, 2, 3, id="experts on two ranks each"),
        pytest.param([5, 6], 2, 2, 3, id="all experts on each rank"),
        pytest.param([20, 30], 8, 4, 2, id="several experts on each rank"),
    ],
)
def test_outputs_and_gradients_equal_plain_ddp(
    run: RunRanks, tokens: Sequence[int], experts: int, per_device: int, chunks: int
) -> None:
    results = run(
        scenarios.train,
        len(tokens),
        tokens=tokens,
        experts=experts,
        per_device=per_device,
        chunks=chunks,
        hidden=8,
        layers=3,
        partition_bytes=200,
    )
    for result in results:
        assert result["largest_gradient"] > 0.1
        assert result["outputs"] < 1e-14
        assert result["gradients"] < 1e-14
    trace = [record for result in results for record in records(result)]
    assert {record.kind for record in trace} == (
        set(CollectiveKind) if experts > per_device else {CollectiveKind.ALLREDUCE}
    )
    assert overlaps(trace) == []


def test_allreduce_never_overlaps_all_to_all(run: RunRanks) -> None:
    results = run(scenarios.communicate_at_random, 3, count=60)
    assert all(result["sums"] == [3.0] for result in results)
    assert all(arrived == [0.0, 1.0, 2.0] for result in results for arrived in result["arrived"])
    traces = [records(result) for result in results]
    assert overlaps([record for trace in traces for record in trace]) == []
    waits = [count for trace in traces for count in waited_behind(trace).values()]
    assert len(waits) == 3 * 20
    assert max(waits) <= 1


def test_ranks_issue_in_one_order(run: RunRanks) -> None:
    results = run(scenarios.communicate_at_random, 3, count=30)
    orders = [[record.label for record in records(result)] for result in results]
    assert orders[0] == orders[1] == orders[2]


def test_planned_step_keeps_gradients_and_order(run: RunRanks) -> None:
    last = 3 * 2 * (1 + 2 * 2) - 3  # all-to-alls of three layers, of which backward passes have no counts
    results = run(scenarios.train_by_plan, 2, after=last)
    for result in results:
        assert result["orders"] == results[0]["orders"]
        assert all(gradients == result["gradients"][0] for gradients in result["gradients"])
        kinds = result["orders"][3]
        assert kinds.count(CollectiveKind.ALL_TO_ALL) == last
        assert kinds == [CollectiveKind.ALL_TO_ALL] * last + [CollectiveKind.ALLREDUCE] * (len(kinds) - last)
        assert result["orders"][1] != kinds


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((1, 0), "rank 2 has 5 allreduce micro-ops in a step, rank 0 has 4"),
        ((0, 2), "rank 2 has 8 all-to-all micro-ops in a step, rank 0 has 6"),
    ],
    ids=["allreduces", "all_to_alls"],
)
def test_ranks_with_other_steps_fail_when_planning(run: RunRanks, more: tuple[int, int], text: str) -> None:
    for result in run(scenarios.disagree_on_a_plan, 3, allreduces=more[0], all_to_alls=more[1]):
        assert text in result["text"]


@pytest.mark.parametrize("per_device", [[1, 2], [2, 4], [1, 4], [2, 1]])
def test_experts_move_to_where_they_are_packed(run: RunRanks, per_device: Sequence[int]) -> None:
    results = run(scenarios.pack_again, 4, per_device=per_device)
    count = per_device[-1]
    for rank, result in enumerate(results):
        hosted = [float(expert) for expert in range(4)][rank * count % 4 :][:count]
        assert result["experts"] == [hosted, hosted]
        assert result["shapes"] == [[count, 2, 3], [count, 5]]
        assert result["spread"] == [0.0, 0.0]
        assert result["times"] == {"all_to_all_s": 1.5, "feed_forward_s": 1.0}


def test_recording_has_its_micro_ops(run: RunRanks) -> None:
    for result in run(scenarios.record, 2):
        assert result["recorded"] == [result["host"]]
        assert "in it" in result["host"]["label"]
        assert result["began_s"] <= result["host"]["submitted_s"]


def test_host_gradients_are_averaged_by_micro_op(run: RunRanks) -> None:
    for result in run(scenarios.average_staged, 2):
        assert result["gradient"] == [1.5 * number for number in range(10)]
        assert [record.size_bytes for record in records(result)] == [20, 20]


def test_the_least_budget_of_all_ranks_counts(run: RunRanks) -> None:
    for result in run(scenarios.agree_on_a_budget, 2, budgets=[[None, None], [None, 5], [7, 5], [0, None]]):
        assert result["agreed"] == [None, 5, 5, 0]
