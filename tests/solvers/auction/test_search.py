"""The schedule search and the certificate's search against brute force (errata P2, P3, P8)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.market import Market
from solvers.auction.market.window import (
    VendorOption,
    Window,
    binding,
    earliest_last_slot,
    room_for,
    undominated,
)
from solvers.auction.mechanism.certificate import least_additive_cost
from solvers.auction.mechanism.cover import by_cost, cheapest_cover
from solvers.auction.mechanism.search import best_schedule
from tests.support.examples import examples
from tests.support.markets import additive_cost, critical_micros, demand, every_schedule, fleet, small_cases

ENDLESS = 10**15
"""Steps."""
NO_VENDOR = [VendorOption(None, 0, 0)]


@settings(max_examples=examples(1_500), deadline=None)
@given(small_cases())
def test_found_schedule_is_cheapest_with_room(case):
    market, wanted, options, first, last = case
    window = Window.of(market, wanted, options, first, last)
    found = window and best_schedule(market, wanted, window, room_only=True)
    least = min((critical_micros(s) for s in every_schedule(*case)), default=math.inf)
    if found is None:
        assert least == math.inf
        return
    assert critical_micros(found) == pytest.approx(least, rel=1e-12)
    market.reserve(found.placement, wanted)
    assert found.samples >= wanted.work_samples


@settings(max_examples=examples(700), deadline=None)
@given(small_cases())
def test_certificate_bounds_every_plan_below(case):
    market, wanted, *_ = case
    every = every_schedule(*case, room_only=False)
    least = min((additive_cost(market, wanted, schedule) for schedule in every), default=math.inf)
    window = Window.of(*case)
    found = math.inf if window is None else least_additive_cost(market, wanted, window)
    assert found == pytest.approx(least, rel=1e-12)


@settings(max_examples=examples(700), deadline=None)
@given(small_cases(), st.floats(0, 60))
def test_cutoff_hides_only_equal_or_higher_costs(case, cutoff):
    market, wanted, *_ = case
    window = Window.of(*case)
    if window is None:
        return
    least = least_additive_cost(market, wanted, window)
    found = least_additive_cost(market, wanted, window, cutoff)
    assert found == (least if least < cutoff else math.inf)


@settings(max_examples=examples(500), deadline=None)
@given(small_cases())
def test_earliest_last_slot_admits_plan(case):
    market, wanted, options, _, _ = case
    end = market.first_slot + market.horizon_slots - 1
    possible = [
        last
        for last in range(market.first_slot, end + 1)
        if any(every_schedule(market, wanted, options, market.first_slot, last))
    ]
    assert earliest_last_slot(market, wanted, options) == (possible[0] if possible else None)


@settings(max_examples=examples(1_500), deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.4488, 1.0, 7.5, 1e3, 1e9, 1.1e12, 1e15]), min_size=1, max_size=6),
    st.integers(1, 10**6),
    st.integers(1, 3 * 10**6),
)
def test_cover_is_exact_for_distant_costs(costs, step, work):
    samples = np.array([step], np.int64)
    column = np.array(costs)[:, None]
    cost = cheapest_cover(column, by_cost(column), samples, work, math.inf, ENDLESS).cost
    needed = -(-work // step)
    least = math.fsum(sorted(costs)[:needed]) if needed <= len(costs) else math.inf
    assert cost == pytest.approx(least, rel=1e-9)


def test_dominated_vendor_is_not_considered():
    fast, slow = VendorOption("fast", 9, 1), VendorOption("slow", 9, 2)
    cheap, worse = VendorOption("cheap", 3, 4), VendorOption("worse", 5, 4)
    assert undominated([worse, slow, cheap, fast]) == [fast, cheap]


def test_task_without_room_gets_limiting_resource():
    of = fleet((1, 10.0, 8.0))
    market = Market(of, 4, 0, lambda *_: 0.0)
    wanted = demand(of, 4, [2], 4.0)
    market.free_gib[:3] = 3.0
    room = room_for(market, wanted, 0, 2)
    assert (room.with_room, room.without_memory, room.node_slots) == (0, 3, 3)
    assert binding(wanted, room, 3, found=False) == "memory"
    assert binding(wanted, room, 1, found=False) == "time"
