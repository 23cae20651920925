"""Synthetic instances of the task merger, and the search for slow ones."""

import random
from dataclasses import replace

import pytest

from bench.merging import merger
from bench.merging.merger import neighbour, random_shape, slow_instances
from bench.merging.random_instances import InstanceShape, synthetic


def test_seed_and_shape_determine_an_instance():
    shape = InstanceShape(units=200, gpus=16, kinds=3, density=1.0, seed=7)
    problem = synthetic(shape)
    assert problem == synthetic(shape) != synthetic(replace(shape, seed=8))
    assert (len(problem.units), problem.gpus, len(problem.kinds)) == (200, 16, 3)
    assert len(problem.transfers) == 9 + 6
    assert sum(unit.gpus for unit in problem.units) <= 16
    waiting = {unit.job_ids[0] for unit in problem.units if unit.gpus == 0}
    followers = [unit.follower for unit in problem.units if unit.follower is not None]
    assert set(followers) <= waiting
    assert len(followers) == len(set(followers))


def test_neighbours_differ_in_one_parameter():
    rng = random.Random(1)
    shape = random_shape(rng)
    for _ in range(50):
        other = neighbour(rng, shape)
        changed = {name for name in vars(shape) if getattr(shape, name) != getattr(other, name)}
        assert len(changed) == 1 or changed == {"least_ratio", "most_ratio"}


def test_search_yields_every_timed_instance(monkeypatch):
    monkeypatch.setattr(merger, "UNITS", 20)
    monkeypatch.setattr(merger, "GPUS", 4)
    found = list(slow_instances(random.Random(2), 12))
    assert len(found) == 12
    assert all(took_s > 0 and shape.units == 20 for took_s, shape in found)


@pytest.mark.parametrize("least", [0.02, 0.9])
def test_ratios_have_any_order(least):
    problem = synthetic(InstanceShape(units=10, gpus=4, least_ratio=1.0, most_ratio=least))
    assert all(least <= transfer.receiver_ratio <= 1.0 for transfer in problem.transfers)
