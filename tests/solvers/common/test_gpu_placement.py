"""Where the GPUs of a task are placed."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from solvers.common.gpu_placement import place


def test_one_node_comes_before_several_and_the_fullest_before_others() -> None:
    assert place(2, {"a": 4, "b": 2, "c": 3}, {}) == {"b": 2}


def test_what_no_node_holds_takes_whole_nodes_and_the_rest_of_a_full_one() -> None:
    assert place(6, {"a": 4, "b": 2, "c": 4, "d": 3}, {}) == {"a": 4, "b": 2}


def test_a_node_that_has_had_the_task_comes_first_among_equals() -> None:
    assert place(2, {"a": 2, "b": 2}, {"b": 1}) == {"b": 2}
    assert place(2, {"a": 2, "b": 4}, {"b": 1}) == {"a": 2}


def test_too_few_are_none() -> None:
    assert place(3, {"a": 1, "b": 1}, {}) is None


@given(st.integers(1, 12), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 4)))
def test_no_fewer_nodes_would_do(gpus: int, free: dict[str, int]) -> None:
    placed = place(gpus, free, {})
    if placed is None:
        assert sum(free.values()) < gpus
        return
    assert sum(placed.values()) == gpus
    assert all(0 < count <= free[node] for node, count in placed.items())
    fewer = combinations(free.values(), len(placed) - 1)
    assert all(sum(sizes) < gpus for sizes in fewer)
