"""Valid demands and placements, and the values computed from them."""

import numpy as np
import pytest

from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from tests.solvers.experts.strategies import planned_loads


def test_popularity_parts_sum_to_batch():
    demand = ExpertDemand.of_popularity(np.array([0.5, 0.25, 0.0]))
    assert demand.loads.tolist() == [2**31, 2**30, 0]
    assert demand.total == 2**32
    assert demand.popularity.tolist() == [0.5, 0.25, 0.0]


def test_unknown_demand_is_spread_evenly():
    assert ExpertDemand(np.array([5, 0, 0]), 10).filled().loads.tolist() == [7, 2, 1 + 0]


def test_empty_batch_counts_all_alike():
    assert ExpertDemand(np.array([0, 0]), 0).filled().loads.tolist() == [1, 1]


def test_ranks_demand_together_what_each_does():
    together = ExpertDemand.combined([ExpertDemand(np.array([1, 2]), 4), ExpertDemand(np.array([3, 0]), 3)])
    assert (together.loads.tolist(), together.total) == ([4, 2], 7)


def test_popular_experts_precede_and_unused_are_absent():
    demand = ExpertDemand.of_counts(np.array([3, 0, 9, 3]))
    assert demand.top(2) == (2, 0)
    assert demand.top(9) == (2, 0, 3)


@pytest.mark.parametrize(
    ("loads", "total", "what"),
    [
        ([1, -1], 1, "expert 1 has a load of -1"),
        ([2, 2], 3, "the loads add up to 4 and the batch to 3"),
        ([], 0, "0 experts"),
    ],
)
def test_a_demand_that_cannot_be_is_refused(loads, total, what):
    with pytest.raises(ValueError, match=what):
        ExpertDemand(np.array(loads, np.int64), total)


@pytest.mark.parametrize("popularity", [[0.5, float("nan")], [0.5, -0.1], [0.5, 1.5], [0.6, 0.6]])
def test_invalid_popularity_is_refused(popularity):
    with pytest.raises(ValueError, match="popularit"):
        ExpertDemand.of_popularity(np.array(popularity))


@pytest.mark.parametrize(
    ("lists", "what"),
    [
        ([[0], [2]], "expert 2 of a layer with 2"),
        ([[0, 0], [1]], "expert 0 twice"),
        ([[0], [0]], "expert 1 is on no device"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(lists, what):
    with pytest.raises(ValueError, match=what):
        ExpertPlacement.of_lists(lists, 2)


def test_more_experts_than_fit_are_refused():
    with pytest.raises(ValueError, match="9 experts do not fit on 2 devices with at most 4 each"):
        DeviceGroup(2).check(9)


def test_placement_has_replicas_and_device_loads():
    placement = ExpertPlacement.of_parts(np.array([[3, -1, 2], [1, 5, -1]]), 4)
    assert placement.lists() == [[0, 2], [0, 1]]
    assert placement.replicas().tolist() == [2, 1, 1]
    assert placement.shares.tolist() == [[0.75, 1.0, 0, 0], [0.25, 1.0, 0, 0]]
    assert planned_loads(placement, ExpertDemand.of_counts(np.array([8, 1, 2]))).tolist() == [8.0, 3.0]


def test_placement_survives_json():
    placement = ExpertPlacement.of_parts(np.array([[3, -1, 2], [1, 5, -1]]), 4)
    again = ExpertPlacement.from_json(placement.to_json())
    assert again.to_json() == placement.to_json()
