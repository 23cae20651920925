"""Clearing prices: a bound on every schedule."""

import random

import numpy as np
import pytest

from bench.auction.clearing import clearing_prices
from solvers.auction.offline.instance import OfferedTask
from tests.support.instances import (
    FIRST_SLOT,
    NO_VENDOR,
    brute_force_micros,
    empty_instance,
    random_instance,
)
from tests.support.markets import demand, fleet


@pytest.mark.parametrize("seed", range(60))
def test_rounds_bound_all_schedules(seed: int) -> None:
    instance = random_instance(random.Random(f"{seed}/clearing"), tasks=3, is_empty=True)
    optimum = brute_force_micros(instance)
    for rounds in (1, 3, 10):
        assert clearing_prices(instance, rounds).bound_micros >= optimum


def crowd(count: int, nodes: int = 1, bid_micros: int = 1_000):
    """Return `count` equal tasks, each for a whole node in one of two slots."""
    of = fleet((nodes, 10.0, 4.0))
    tasks = [
        OfferedTask(f"j{n}", bid_micros, demand(of, 10, [10], 1.0), NO_VENDOR, FIRST_SLOT, FIRST_SLOT + 1)
        for n in range(count)
    ]
    return empty_instance(of, 2, tasks)


def test_sufficient_room_is_free() -> None:
    found = clearing_prices(crowd(2), rounds=50)
    assert found.bound_micros == 2_000
    assert not found.compute_price.any()
    assert not found.memory_price.any()


def test_scarce_room_costs_last_winning_offer() -> None:
    found = clearing_prices(crowd(6), rounds=300)
    assert found.bound_micros <= 2_000 * 1.05
    assert found.compute_price.ravel() == pytest.approx(np.full(2, 1_000.0), rel=0.1)


def test_more_rounds_never_leave_a_worse_bound() -> None:
    instance = random_instance(random.Random(5), tasks=6, slots=4, is_empty=True)
    bounds = [clearing_prices(instance, rounds).bound_micros for rounds in (5, 20, 80)]
    assert bounds[-1] <= bounds[0]


def test_no_tasks_no_prices() -> None:
    found = clearing_prices(crowd(0), rounds=5)
    assert found.bound_micros == 0
    assert not found.compute_price.any()
