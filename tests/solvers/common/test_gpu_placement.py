"""Where the GPUs of a task are placed."""

from collections.abc import Mapping
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.common.gpu_placement import IdleGpus
from tests.support.examples import examples

NODES = "abcdef"
FREE = st.dictionaries(st.sampled_from(NODES), st.integers(0, 4))


def place(gpus: int, free: Mapping[str, int], preferred: Mapping[str, int]) -> dict[str, int] | None:
    return IdleGpus(sorted(free), free).allocate(gpus, preferred)


def looked_for(gpus: int, free: Mapping[str, int], preferred: Mapping[str, int]) -> dict[str, int] | None:
    """Apply the rule by examining every node."""
    left = {node: idle for node, idle in sorted(free.items()) if idle}
    placed: dict[str, int] = {}
    while gpus and left:
        whole = [node for node, idle in left.items() if idle >= gpus]
        order = {node: (node not in preferred, node) for node in left}
        best = min(whole or left, key=lambda node: (left[node] if whole else -left[node], order[node]))
        placed[best] = min(left.pop(best), gpus)
        gpus -= placed[best]
    return None if gpus else placed


def test_one_fullest_node_comes_first() -> None:
    assert place(2, {"a": 4, "b": 2, "c": 3}, {}) == {"b": 2}


def test_large_demand_takes_whole_nodes_and_rest() -> None:
    assert place(6, {"a": 4, "b": 2, "c": 4, "d": 3}, {}) == {"a": 4, "b": 2}


def test_former_node_wins_ties() -> None:
    assert place(2, {"a": 2, "b": 2}, {"b": 1}) == {"b": 2}
    assert place(2, {"a": 2, "b": 4}, {"b": 1}) == {"a": 2}


def test_too_few_gpus_give_no_placement() -> None:
    assert place(3, {"a": 1, "b": 1}, {}) is None


@given(st.integers(1, 12), FREE)
def test_no_fewer_nodes_would_do(gpus: int, free: dict[str, int]) -> None:
    placed = place(gpus, free, {})
    if placed is None:
        assert sum(free.values()) < gpus
        return
    assert sum(placed.values()) == gpus
    assert all(0 < count <= free[node] for node, count in placed.items())
    fewer = combinations(free.values(), len(placed) - 1)
    assert all(sum(sizes) < gpus for sizes in fewer)


@settings(max_examples=examples(2_000))
@given(FREE, st.data())
def test_index_matches_full_scan(free: dict[str, int], data: st.DataObject) -> None:
    idle = IdleGpus(NODES, free)
    for _ in range(data.draw(st.integers(1, 8))):
        node = data.draw(st.sampled_from(NODES))
        match data.draw(st.sampled_from(["take", "count", "drop"])):
            case "take":
                gpus, preferred = data.draw(st.integers(1, 12)), data.draw(FREE)
                placed = idle.allocate(gpus, preferred)
                assert placed == looked_for(gpus, free, preferred)
                assert list(placed or ()) == list(looked_for(gpus, free, preferred) or ())
                for taken, count in (placed or {}).items():
                    free[taken] -= count
            case "count":
                free[node] = data.draw(st.integers(0, 4))
                idle.count(node, free[node])
            case "drop":
                free.pop(node, None)
                idle.drop(node)
        assert idle.total == sum(free.values())
        assert {node: idle.of(node) for node in free} == free
