"""Layers are cut into stages."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.tuner.pipeline.partition import PartitionError, cut, stage_of
from tests.support.examples import examples


def worst_stage(costs: list[int], bounds: tuple[int, ...]) -> int:
    ends = (0, *bounds, len(costs))
    return max(sum(costs[start:end]) for start, end in pairwise(ends))


@settings(max_examples=examples(500), deadline=None)
@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=9), data=st.data())
def test_no_other_cut_has_a_cheaper_worst_stage(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    parts = cut(costs, stages)
    assert [layer for part in parts for layer in part] == list(range(len(costs)))
    assert len(parts) == stages
    assert all(len(part) > 0 for part in parts)
    best = min(worst_stage(costs, bounds) for bounds in combinations(range(1, len(costs)), stages - 1))
    assert max(sum(costs[layer] for layer in part) for part in parts) == best


def test_last_stage_of_equal_cuts_is_smallest() -> None:
    assert cut([1] * 5, 4) == (range(2), range(2, 3), range(3, 4), range(4, 5))


def test_expensive_head_gets_smaller_stage() -> None:
    assert cut([1, 1, 1, 1, 1, 3], 2) == (range(4), range(4, 6))


@pytest.mark.parametrize("stages", [0, 6])
def test_impossible_number_of_stages_is_refused(stages: int) -> None:
    with pytest.raises(PartitionError, match=f"{stages} stages for 5 layers: between 1 and 5"):
        cut([1] * 5, stages)


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_invalid_cost_is_refused(cost: float) -> None:
    with pytest.raises(PartitionError, match="negative or not a number"):
        cut([1.0, cost], 2)


def test_a_reverse_task_begins_on_the_last_rank() -> None:
    assert [stage_of(rank, 4, "forward") for rank in range(4)] == [0, 1, 2, 3]
    assert [stage_of(rank, 4, "reverse") for rank in range(4)] == [3, 2, 1, 0]
