"""Phase one and phase two of each scheme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.schemes import SCHEMES, BusiestDevice, TopLists
from solvers.experts.splitting import device_loads
from tests.solvers.experts.strategies import COUNTS
from tests.support.examples import examples

FOUR = DeviceGroup(4)


def demand(*tokens):
    return ExpertDemand.of_counts(np.array(tokens))


def settled(name, estimated, *tokens):
    scheme = SCHEMES[name]
    planned = scheme.plan(estimated, FOUR)
    return planned, scheme.settle(planned, estimated, np.array(tokens), FOUR)


def test_placement_stays_with_equal_top_lists():
    planned, came = settled("lina", demand(40, 30, 20, 10), 50, 40, 5, 5)
    assert (came.placement, came.is_revised) == (planned, False)


@pytest.mark.parametrize("tokens", [(30, 40, 20, 10), (40, 20, 30, 10), (0, 100, 0, 0)])
def test_differing_top_lists_place_again(tokens):
    # Erratum I2: k = 1 in inference, so two experts are compared.
    _, came = settled("lina", demand(40, 30, 20, 10), *tokens)
    assert came.is_revised
    assert came.placement.lists() == SCHEMES["lina"].place(demand(*tokens), FOUR).lists()


def test_without_fine_tuning_what_was_planned_is_kept():
    planned, came = settled("without_fine_tuning", demand(40, 30, 20, 10), 0, 0, 0, 100)
    assert (came.placement, came.is_revised) == (planned, False)


def test_without_estimation_nothing_is_planned_and_everything_waits():
    planned, came = settled("without_estimation", demand(40, 30, 20, 10), 0, 0, 0, 100)
    assert planned is None
    assert came.is_revised


def test_balanced_gating_gives_every_expert_as_many():
    _, came = settled("ideal", demand(1, 1, 1, 1), 0, 0, 0, 10)
    assert came.tokens.tolist() == [3, 3, 2, 2]
    assert device_loads(came.split).tolist() == [3, 3, 2, 2]


def test_excess_tokens_deviate_despite_equal_lists():
    estimated, actual = demand(40, 30, 20, 10), demand(97, 1, 1, 1)
    placement = SCHEMES["lina"].place(estimated, FOUR)
    assert TopLists().deviates(placement, estimated, demand(30, 40, 20, 10), FOUR)
    assert BusiestDevice(0.05).deviates(placement, estimated, actual, FOUR)
    assert not BusiestDevice(3.0).deviates(placement, estimated, actual, FOUR)


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_unknown_layer_is_served(name):
    _, came = settled(name, ExpertDemand(np.zeros(4, np.int64), 0), 8, 0, 0, 0)
    assert device_loads(came.split).sum() == 8


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_batch_without_a_token_is_served(name):
    _, came = settled(name, demand(1, 2, 3, 4), 0, 0, 0, 0)
    assert came.split.sum() == 0


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(COUNTS, min_size=6, max_size=6), st.lists(COUNTS, min_size=6, max_size=6))
def test_balanced_stays_near_mean(estimated, tokens):
    cluster = DeviceGroup(6)
    scheme = SCHEMES["balanced"]
    expected = demand(*estimated)
    came = scheme.settle(scheme.plan(expected, cluster), expected, np.array(tokens), cluster)
    assert came.split.sum() == sum(tokens)
    assert device_loads(came.split).max() <= -(-sum(tokens) // 6) * 1.05
