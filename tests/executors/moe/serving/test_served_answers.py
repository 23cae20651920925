"""Answers of a service are those of the model in one process, wherever its experts are."""

from typing import Any

import pytest

from solvers.experts.schemes import SCHEMES
from tests.executors.moe.conftest import RunRanks
from tests.support.served_ranks import serve

EXACT = sorted(set(SCHEMES) - {"ideal"})


def served(run: RunRanks, world: int, **setup: Any) -> list[dict[str, Any]]:
    setup = {"layers": 3, "experts": 4, "sizes": [8] * 5} | setup
    return run(serve, world, **setup)


def assert_same_answers(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["difference"] <= 1e-10
    assert max(result["largest"] for result in results) > 0.1


@pytest.mark.parametrize("scheme", EXACT)
def test_every_scheme_gives_the_models_answers(run: RunRanks, scheme: str) -> None:
    assert_same_answers(served(run, 3, scheme=scheme))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_ranks_gives_the_models_answers(run: RunRanks, world: int) -> None:
    assert_same_answers(served(run, world))


@pytest.mark.long
def test_single_requests_give_answers_of_model(run: RunRanks) -> None:
    # All ranks but one have nothing to answer; experts outnumber tokens in some of these batches.
    results = served(run, 3, sizes=[1] * 6, experts=8, most=8)
    assert_same_answers(results)


def test_unchosen_expert_is_still_placed(run: RunRanks) -> None:
    results = served(run, 2, dead=[1, 2])
    assert_same_answers(results)
    tokens = [layer["tokens"] for batch in results[0]["passages"] for layer in batch]
    assert any(0 in counts for counts in tokens)


@pytest.mark.long
@pytest.mark.parametrize("gating", ["top2", "adaptive"])
def test_tokens_with_two_experts_give_the_models_answers(run: RunRanks, gating: str) -> None:
    results = served(run, 2, gating=gating)
    assert_same_answers(results)
    doubles = [layer["doubles"] for batch in results[0]["passages"] for layer in batch]
    assert sum(doubles) > 0


@pytest.mark.long
def test_answers_are_independent_of_placement(run: RunRanks) -> None:
    everywhere = [[0, 1, 2, 3]] * 3
    uneven = [[3], [0, 1, 2], [3]]
    placements = [(1, [(0, everywhere), (1, uneven)]), (3, [(0, uneven), (2, everywhere)])]
    for scheme in ("balanced", "without_fine_tuning", "one_per_device"):
        results = served(run, 3, scheme=scheme, placements=placements)
        assert_same_answers(results)


def test_a_standing_placement_that_serves_well_is_kept(run: RunRanks) -> None:
    # Everything is everywhere: nothing is left to load or to revise, whatever is chosen.
    everywhere = [[0, 1, 2, 3]] * 2
    results = served(run, 2, placements=[(0, [(layer, everywhere) for layer in range(3)])])
    assert_same_answers(results)
    for result in results:
        for batch in result["passages"]:
            assert [(layer["loads"], layer["revised"]) for layer in batch] == [(0, False)] * 3


@pytest.mark.long
def test_busiest_device_is_near_the_mean(run: RunRanks) -> None:
    results = served(run, 4, experts=8, sizes=[16] * 6)
    for batch in results[0]["passages"][2:]:
        for layer in batch:
            assert layer["busiest"] <= -(-sum(layer["tokens"]) // 4) * 1.05


@pytest.mark.long
def test_balanced_gating_spreads_tokens_whatever_was_chosen(run: RunRanks) -> None:
    results = served(run, 4, scheme="ideal")
    for batch in results[0]["passages"][2:]:
        assert all(layer["busiest"] == -(-sum(layer["tokens"]) // 4) for layer in batch)


def test_all_ranks_profile_the_same(run: RunRanks) -> None:
    results = served(run, 3, profile_batches=4, sizes=[8] * 4)
    assert len({(result["accuracy"], result["paths"]) for result in results}) == 1
    assert 0 <= results[0]["accuracy"] <= 1
    assert all(layer["as_forecast"] is None for batch in results[0]["passages"] for layer in batch)


def test_own_batches_replace_the_paths_of_training(run: RunRanks) -> None:
    kept, replaced, own = (
        served(run, 2, length=1, profile_batches=batches, trained_tokens=tokens, sizes=[8] * 3)
        for batches, tokens in ((0, 64), (2, 64), (2, 0))
    )
    first = kept[0]["passages"][0]
    assert all(layer["as_forecast"] is not None for layer in first), "known before any batch"
    assert [layer["as_forecast"] for layer in replaced[0]["passages"][0]] == [
        layer["as_forecast"] for layer in first
    ]
    assert kept[0]["paths"] != own[0]["paths"]
    for ours, theirs in zip(replaced, own, strict=True):
        assert (ours["paths"], ours["accuracy"]) == (theirs["paths"], theirs["accuracy"])
    assert [layer["as_forecast"] for layer in replaced[0]["passages"][2]] == [
        layer["as_forecast"] for layer in own[0]["passages"][2]
    ]


def test_thesis_scheme_revises_missed_forecasts(run: RunRanks) -> None:
    results = served(run, 2, scheme="lina", sizes=[8] * 8)
    for batch in results[0]["passages"][2:]:
        for layer in batch:
            assert layer["revised"] == (not layer["as_forecast"])
