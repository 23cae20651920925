"""Placements of each scheme, against worked examples and brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.experts.balanced import place_balanced
from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.published import place_first_fit, place_one_per_device, place_replicated
from solvers.experts.splitting import device_loads, even_split
from tests.solvers.experts.brute_force import best_largest_load
from tests.solvers.experts.strategies import COUNTS, clusters_and_tokens, planned_loads
from tests.support.examples import examples

SCHEMES = [place_balanced, place_first_fit, place_one_per_device, place_replicated]
BY_NAME = pytest.mark.parametrize("place", SCHEMES, ids=lambda place: place.__name__)


def largest(placement, tokens):
    return int(device_loads(even_split(placement, tokens)).max())


@BY_NAME
@settings(max_examples=examples(200), deadline=None)
@given(clusters_and_tokens(9, 20), st.integers(0, 500))
def test_all_experts_are_placed_within_capacity(place, case, unknown):
    cluster, tokens = case
    placement = place(ExpertDemand(tokens, int(tokens.sum()) + unknown), cluster)
    lists = placement.lists()
    assert len(lists) == cluster.devices
    assert all(len(row) <= cluster.most_per_device for row in lists)
    assert {expert for row in lists for expert in row} == set(range(tokens.size))
    shares = np.zeros(tokens.size)
    np.add.at(shares, placement.experts[placement.experts >= 0], placement.shares[placement.experts >= 0])
    assert np.allclose(shares, 1)


@BY_NAME
def test_experts_without_room_are_refused(place):
    with pytest.raises(ValueError, match="5 experts do not fit on 2 devices with at most 2 each"):
        place(ExpertDemand.of_counts(np.ones(5, np.int64)), DeviceGroup(2, 2))


@pytest.mark.parametrize(
    ("devices", "most", "experts", "above_the_best"),
    [
        *((2, 2, 3, 0), (2, 2, 4, 0), (2, 3, 4, 0), (3, 1, 3, 0), (3, 2, 3, 0), (3, 2, 4, 0)),
        pytest.param(3, 2, 5, 1, marks=pytest.mark.long),
    ],
)
def test_balanced_placement_is_nearly_best(devices, most, experts, above_the_best):
    # All loads from few values. With five experts in six slots 0, 5, 5, 5, 8 comes out one token worse.
    above = 0
    for loads in itertools.combinations_with_replacement([0, 1, 5, 8, 30], experts):
        tokens = np.array(loads)
        placement = place_balanced(ExpertDemand.of_counts(tokens), DeviceGroup(devices, most))
        above += largest(placement, tokens) - best_largest_load(loads, devices, most)
    assert above == above_the_best


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 64), st.integers(2, 4), st.data())
def test_device_per_expert_gets_the_mean(devices, most, data):
    experts = data.draw(st.integers(1, devices))
    tokens = np.array(data.draw(st.lists(COUNTS, min_size=experts, max_size=experts)))
    placement = place_balanced(ExpertDemand.of_counts(tokens), DeviceGroup(devices, most))
    assert largest(placement, tokens) == -(-tokens.sum() // devices)
    assert int(placement.replicas().sum()) <= experts + devices


@settings(max_examples=examples(300), deadline=None)
@given(clusters_and_tokens(12, 40))
def test_balanced_placement_beats_greedy_replication(case):
    cluster, tokens = case
    balanced = place_balanced(ExpertDemand.of_counts(tokens), cluster)
    replicated = place_replicated(ExpertDemand.of_counts(tokens), cluster)
    assert largest(balanced, tokens) <= largest(replicated, tokens)


def test_first_fit_packs_fractions_after_popular_experts():
    # n = 6 x popularity = 3, 1.2, 0.9, 0.6, 0.3, 0: devices 0 to 2 are expert 0's, device 3 is expert 1's.
    # Of the fractions 0.9, 0.6, 0.3, 0.2 the first two open devices 4 and 5, and device 5 has room for 0.3.
    # Neither has room for expert 1's 0.2, which stays where it is. Nothing is known of expert 5, and no
    # device is empty: it is drawn.
    tokens = np.array([50, 20, 15, 10, 5, 0])
    placement = place_first_fit(ExpertDemand.of_counts(tokens), DeviceGroup(6), seed=7)
    lists = placement.lists()
    assert [[expert for expert in row if expert != 5] for row in lists] == [[0], [0], [0], [1], [2], [3, 4]]
    assert sum(5 in row for row in lists) == 1
    assert np.allclose(
        planned_loads(placement, ExpertDemand.of_counts(tokens)), [50 / 3, 50 / 3, 50 / 3, 20, 15, 15]
    )


def test_first_fit_shares_tokens_in_proportion_to_devices():
    # n = 4 x popularity = 2.5, 0.5, 0.5, and 0.5 of the batch is not known.
    placement = place_first_fit(ExpertDemand(np.array([5, 1, 1]), 8), DeviceGroup(4))
    assert placement.lists() == [[0], [0], [0, 1], [2]]
    assert placement.shares[:, 0].tolist() == [0.4, 0.4, 0.2, 1.0]


def test_first_fit_spreads_unknown_over_empty_devices():
    placement = place_first_fit(ExpertDemand(np.array([4, 0, 0, 0, 0]), 16), DeviceGroup(4))
    assert placement.lists() == [[0], [1, 4], [2], [3]]


def test_first_fit_draws_alike_from_the_same_seed():
    demand = ExpertDemand.of_counts(np.array([100] * 4 + [0] * 8))
    drawn = [place_first_fit(demand, DeviceGroup(4), seed=seed).lists() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_first_fit_places_all_before_replicating():
    placement = place_first_fit(ExpertDemand.of_counts(np.array([9, 0])), DeviceGroup(2, 1))
    assert placement.lists() == [[0], [1]]


def test_one_per_device_keeps_to_the_numbers():
    def placed(experts, devices):
        return place_one_per_device(
            ExpertDemand.of_counts(np.ones(experts, np.int64)), DeviceGroup(devices)
        ).lists()

    assert placed(3, 3) == [[0], [1], [2]]
    assert placed(5, 2) == [[0, 1, 2], [3, 4]]
    assert placed(2, 5) == [[0], [1], [0], [1], [0]]


def test_greedy_replication_serves_largest_load():
    # Six slots for three experts with 90, 30 and 12: the spare ones go to expert 0 at 90, 45, 30 (before
    # expert 1, whose 30 is equal). Replicas 22.5 x 4, 30, 12 are packed 30, 22.5, 22.5 to devices 0, 1, 2,
    # then 22.5, 22.5 to 1 and 2, and 12 to 0.
    tokens = np.array([90, 30, 12])
    placement = place_replicated(ExpertDemand.of_counts(tokens), DeviceGroup(3, 2))
    assert placement.lists() == [[1, 2], [0], [0]]
    assert planned_loads(placement, ExpertDemand.of_counts(tokens)).tolist() == [42.0, 45.0, 45.0]
