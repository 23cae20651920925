"""Searches that end with their budget: a plan wherever there is room, a true gap, the same each time."""

import copy
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.market import Market
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.certificate import least_additive_cost
from solvers.auction.mechanism.mechanism import PriceRises, Request
from solvers.auction.mechanism.search import best_schedule
from tests.support.examples import examples
from tests.support.markets import (
    additive_cost,
    critical_micros,
    demand,
    every_schedule,
    fleet,
    primal_dual,
    small_cases,
)

NO_VENDOR = [VendorOption(None, 0, 0)]
BUDGETS = st.sampled_from([0, 1, 30, 100, 300, 1_000])


@settings(max_examples=examples(800), deadline=None)
@given(small_cases(most_classes=4), BUDGETS)
def test_plan_exists_with_true_gap(case, budget):
    market, wanted, options, first, last = case
    window = Window.of(market, wanted, options, first, last)
    found = window and best_schedule(market, wanted, window, True, budget)
    least = min((critical_micros(s) for s in every_schedule(*case)), default=math.inf)
    if found is None:
        assert least == math.inf
        return
    assert found.gap_micros is not None
    assert least <= critical_micros(found) * (1 + 1e-12)
    assert critical_micros(found) - found.gap_micros <= least * (1 + 1e-12)
    market.reserve(found.placement, wanted)
    assert found.samples >= wanted.work_samples


@settings(max_examples=examples(800), deadline=None)
@given(small_cases(most_classes=4))
def test_search_within_budget_is_exact(case):
    market, wanted, *_ = case
    window = Window.of(*case)
    found = window and best_schedule(market, wanted, window, room_only=True)
    least = min((critical_micros(s) for s in every_schedule(*case)), default=math.inf)
    if found is None:
        assert least == math.inf
        return
    assert found.gap_micros == 0
    assert critical_micros(found) == pytest.approx(least, rel=1e-12)


@settings(max_examples=examples(400), deadline=None)
@given(small_cases(most_classes=3), BUDGETS)
def test_unknown_parts_are_bounded_from_below(case, budget):
    market, wanted, *_ = case
    window = Window.of(*case)
    if window is None:
        return
    every = every_schedule(*case, room_only=False)
    least = min((additive_cost(market, wanted, schedule) for schedule in every), default=math.inf)
    assert least_additive_cost(market, wanted, window, budget_steps=budget) <= least * (1 + 1e-12)


def crowded_market(seed: int, slots: int) -> Market:
    """Four classes, prices and room at random."""
    rng = np.random.default_rng(seed)
    of = fleet((5, 4_000.0, 64.0), (5, 4_000.0, 48.0), (5, 3_000.0, 64.0), (5, 2_400.0, 64.0))
    costs = rng.integers(1, 10**6, (slots, 4))
    market = Market(of, slots, 0, lambda index, slots: costs[slots, index])
    market.compute_price[:] = rng.uniform(0, 10**6, market.compute_price.shape)
    market.memory_price[:] = rng.uniform(0, 10**6, market.memory_price.shape)
    market.free_samples *= rng.random(market.free_samples.shape) < 0.6
    market.price_order.sort(0)
    return market


def test_larger_budget_narrows_the_gap():
    market = crowded_market(seed=1, slots=144)
    wanted = demand(market.fleet, 70_000, [1_119, 1_117, 1_009, 1_219], 8.0)
    window = Window.of(market, wanted, NO_VENDOR, 0, 143)
    assert window is not None
    found = [best_schedule(market, wanted, window, True, budget) for budget in (0, 100_000, 1_000_000)]
    gaps = [schedule.gap_micros for schedule in found if schedule is not None]
    assert len(gaps) == 3
    assert gaps[0] > gaps[1] >= gaps[2]
    # However large one step of the search, it does not lead far beyond the budget.
    steps = [schedule.search_steps for schedule in found if schedule is not None]
    assert all(taken < budget + 10_000 for taken, budget in zip(steps, (0, 10**5, 10**6), strict=True))
    prices = [critical_micros(schedule) for schedule in found if schedule is not None]
    lower = [price - gap for price, gap in zip(prices, gaps, strict=True)]
    assert max(lower) <= min(prices)


@pytest.mark.parametrize("budget", [0, 50_000, 10**6])
def test_truncated_search_is_repeatable(budget):
    rng = random.Random(3)
    market = crowded_market(seed=2, slots=96)
    for _ in range(5):
        speeds = [rng.randint(500, 2_000) for _ in range(4)]
        wanted = demand(market.fleet, 40 * max(speeds), speeds, 8.0)
        window = Window.of(market, wanted, NO_VENDOR, 0, 95)
        assert window is not None
        first, second = (best_schedule(market, wanted, window, True, budget) for _ in range(2))
        assert first is not None
        assert first == second


@settings(max_examples=examples(300), deadline=None)
@given(small_cases(most_classes=3), BUDGETS, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_truncated_search_is_independent_of_bid(case, budget, bids):
    market, wanted, options, first, last = case
    before = primal_dual(market, PriceRises(1.0, 1.0), budget_steps=budget)
    request = Request("j", wanted, options, first, last)
    offered = before.appraise(request)
    for bid_micros in bids:
        auctioneer = copy.deepcopy(before)
        appraisal = auctioneer.appraise(request)
        award = auctioneer.decide(bid_micros, request, appraisal)
        assert (appraisal.schedule, appraisal.price) == (offered.schedule, offered.price)
        assert (award is not None) == (offered.price is not None and bid_micros > offered.price.micros)
        assert award is None or award.charge.micros <= bid_micros


def test_classes_of_equal_speed_are_searched_as_one():
    # Four tariffs of one GPU type: counting each by itself would make 144^3 / 6 combinations of counts.
    of = fleet(*[(25, 24_000.0, 78.0)] * 4)
    rng = np.random.default_rng(4)
    costs = rng.integers(1, 10**6, (144, 4))
    market = Market(of, 144, 0, lambda index, slots: costs[slots, index])
    wanted = demand(of, 157_777, [1_119] * 4, 8.0)
    window = Window.of(market, wanted, NO_VENDOR, 0, 143)
    assert window is not None
    found = best_schedule(market, wanted, window, room_only=True)
    assert found is not None
    assert (found.gap_micros, found.search_steps < 5_000) == (0, True)
    cheapest = np.sort(window.operational.min(axis=1))[: math.ceil(157_777 / 1_119)]
    assert found.operational_micros == cheapest.sum()
