"""Popular experts are on all devices, and the others' tokens are balanced."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solvers.experts.balanced import place_balanced, place_local
from solvers.experts.moves import fill_loaded, fill_nothing, fill_popular
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.splitting import device_loads, even_split, sends
from tests.solvers.experts.strategies import planned_loads


def travelling(placement: ExpertPlacement, tokens: np.ndarray) -> int:
    """Return the tokens of the device that sends or receives the most, where all ranks have tokens alike."""
    ranks = np.tile(tokens // placement.devices, (placement.devices, 1))
    split = even_split(placement, ranks.sum(axis=0))
    pairs = sends(placement, split, ranks).sum(axis=2)
    np.fill_diagonal(pairs, 0)
    return int(max(pairs.sum(axis=0).max(), pairs.sum(axis=1).max()))


def test_fully_replicated_experts_send_no_tokens() -> None:
    tokens = np.array([400, 40, 40, 40])
    placement = place_local(ExpertDemand.of_counts(tokens), DeviceGroup(4))
    assert placement.replicas().tolist() == [4, 4, 4, 4]
    assert travelling(placement, tokens) == 0


def test_most_popular_expert_is_everywhere() -> None:
    tokens = np.array([40, 800, 40, 40, 40, 40, 40, 40])
    placement = place_local(ExpertDemand.of_counts(tokens), DeviceGroup(8, 3))
    assert placement.replicas()[1] == 8
    lean = place_balanced(ExpertDemand.of_counts(tokens), DeviceGroup(8, 3))
    assert travelling(placement, tokens) < 0.6 * travelling(lean, tokens)


def test_two_slots_give_balanced_placement() -> None:
    demand = ExpertDemand.of_counts(np.array([50, 30, 10, 5, 5]))
    placement = place_local(demand, DeviceGroup(5, 2))
    assert placement.lists() == place_balanced(demand, DeviceGroup(5, 2)).lists()


@st.composite
def demands(draw: st.DrawFn) -> tuple[np.ndarray, DeviceGroup]:
    devices = draw(st.integers(1, 8))
    slots = draw(st.integers(1, 5))
    experts = draw(st.integers(1, min(12, devices * slots)))
    per_rank = draw(st.lists(st.integers(0, 60), min_size=experts, max_size=experts))
    return np.array(per_rank, np.int64) * devices, DeviceGroup(devices, slots)


@given(demands())
def test_local_placement_is_nearly_balanced(case: tuple[np.ndarray, DeviceGroup]) -> None:
    tokens, cluster = case
    demand = ExpertDemand.of_counts(tokens)
    ours, lean = place_local(demand, cluster), place_balanced(demand, cluster)
    assert (ours.replicas() >= 1).all()
    largest, least = (device_loads(even_split(each, demand.filled().loads)).max() for each in (ours, lean))
    assert largest <= 1.01 * least + 1


@given(demands(), st.integers(0, 3))
def test_filling_adds_experts_and_takes_none(case: tuple[np.ndarray, DeviceGroup], turn: int) -> None:
    tokens, cluster = case
    demand = ExpertDemand.of_counts(tokens)
    lean = place_balanced(demand, cluster)
    loaded = place_balanced(ExpertDemand.of_counts(np.roll(tokens, turn)), cluster)
    before = device_loads(even_split(lean, tokens)).max()
    for fill in (fill_popular, fill_loaded):
        filled = fill(lean, demand, loaded)
        assert (filled.held() | ~lean.held()).all()
        assert device_loads(even_split(filled, tokens)).max() <= before
        rows = [[each for each in row if each >= 0] for row in filled.experts.tolist()]
        assert all(row == sorted(set(row)) for row in rows)
        assert np.array_equal(planned_loads(filled, demand), planned_loads(lean, demand))
    added = fill_loaded(lean, demand, loaded).held() & ~lean.held()
    assert (loaded.held() | ~added).all()
    assert fill_nothing(lean, demand, loaded) is lean


def test_present_expert_precedes_slightly_more_popular_one() -> None:
    lean = ExpertPlacement.of_lists([[0], [1], [2], [3]], 4, 2)
    loaded = ExpertPlacement.of_lists([[0, 3], [1], [2], [3]], 4, 2)
    filled = fill_popular(lean, ExpertDemand.of_counts(np.array([10, 55, 10, 50])), loaded)
    assert filled.lists() == [[0, 3], [1, 3], [1, 2], [1, 3]]
    filled = fill_popular(lean, ExpertDemand.of_counts(np.array([10, 80, 10, 50])), loaded)
    assert filled.lists() == [[0, 1], [1, 3], [1, 2], [1, 3]]
