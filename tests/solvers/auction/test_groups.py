"""Rows of the master allow every set of tasks that fit on a node together."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.offline.master import VIEWS, NodeGroups, constraining
from solvers.auction.offline.rounding import pack
from tests.support.examples import examples
from tests.support.instances import empty_instance, random_instance
from tests.support.markets import demand, fleet

SIZES = st.tuples(st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(3, 30), st.integers(3, 30), st.randoms(use_true_random=False))
def test_tasks_sharing_node_weigh_at_most_one(samples, gib, rng):
    of = fleet((1, float(samples), float(gib)))
    groups = NodeGroups.of(empty_instance(of, 1, []))
    weighed, left_samples, left_gib = np.zeros(VIEWS), samples, gib
    while left_samples and left_gib:
        taken = rng.randint(1, left_samples), rng.randint(1, left_gib)
        weighed += groups.weights(demand(of, 100, [taken[0]], float(taken[1])))[0]
        left_samples, left_gib = left_samples - taken[0], left_gib - taken[1]
    assert (weighed <= 1.0 + 1e-12).all()


def test_three_tasks_exceed_node_in_second_order():
    of = fleet((1, 10.0, 10.0))
    groups = NodeGroups.of(empty_instance(of, 1, []))
    weights = groups.weights(demand(of, 100, [4], 1.0))
    assert 3 * weights[0, 0] == pytest.approx(1.2)
    assert 3 * weights[0, 4] == 1.5
    assert constraining(weights[None])[0, 4]


def test_unfit_task_has_infinite_weight():
    of = fleet((1, 10.0, 10.0), (1, 10.0, 2.0))
    groups = NodeGroups.of(empty_instance(of, 1, []))
    weights = groups.weights(demand(of, 100, [4, 4], 3.0))
    assert np.isfinite(weights[0]).all()
    assert np.isinf(weights[1]).all()


def test_node_with_room_is_in_one_group():
    instance = random_instance(random.Random(3), tasks=0, nodes=6, slots=4)
    groups = NodeGroups.of(instance)
    classes = len(instance.fleet.classes)
    for column, index in itertools.product(range(instance.slots), range(classes)):
        node_class = instance.fleet.classes[index]
        place = column * classes + index
        kinds = groups.kinds[groups.start[place] : groups.start[place + 1]]
        assert len(set(kinds.tolist())) == len(kinds)
        assert set(groups.kind_class[kinds].tolist()) <= {index}
        nodes = slice(node_class.start, node_class.stop)
        room = (instance.free_samples[column, nodes] > 0) & (instance.free_gib[column, nodes] > 0)
        counted = groups.nodes[groups.start[place] : groups.start[place + 1]]
        assert counted.sum() == room.sum()


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(SIZES, max_size=5), st.lists(SIZES, min_size=1, max_size=3))
def test_a_packing_is_found_where_there_is_one(items, nodes):
    def fits(where):
        return all(
            sum(items[i][part] for i in range(len(items)) if where[i] == node) <= room[part]
            for node, room in enumerate(nodes)
            for part in (0, 1)
        )

    found = pack(items, nodes)
    if found is None:
        assert not any(map(fits, itertools.product(range(len(nodes)), repeat=len(items))))
    else:
        assert fits(found)
