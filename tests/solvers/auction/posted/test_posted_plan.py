"""The plan that a task gets at posted prices, and what it pays for it, against all plans there are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.search import Schedule
from solvers.auction.posted.prices import PostedPrices
from tests.support.examples import examples
from tests.support.markets import demand, every_schedule, fleet, small_cases

FLOOR_PART = 1 / 8


def posted_prices(market, base: float) -> PostedPrices:
    """Return the posted prices that the market was drawn with."""
    prices = PostedPrices(market, Calendar(0.0, 600.0))
    starts = [node_class.start for node_class in market.fleet.classes]
    prices.compute_price[:] = market.compute_price[:, starts]
    prices.memory_price[:] = market.memory_price[:, starts]
    prices.levels.base = base
    return prices


def posted_cost(prices: PostedPrices, market, needed, plan: Schedule) -> float:
    """Return the cost of a plan: vendor, operation, and each node-slot's room at its posted price or at the
    least."""
    operational = market.operational(needed)
    parts = [plan.vendor_micros, plan.operational_micros]
    for slot, row in zip(plan.placement.slots, plan.placement.rows, strict=True):
        column, index = slot - market.first_slot, market.fleet.class_of_row[row]
        compute_share, memory_share = needed.compute_share[index], needed.memory_share[index]
        reserved = market.full_costs[column, index] * max(compute_share, memory_share)
        room = prices.compute_price[column, index] * compute_share
        room += prices.memory_price[column, index] * memory_share
        parts.append(max(room, FLOOR_PART * reserved, reserved - operational[column, index]))
    return math.fsum(parts)


@settings(max_examples=examples(1_500), deadline=None)
@given(small_cases() | small_cases(most_cost_micros=1_000), st.floats(0.0, 50.0) | st.floats(50.0, 5_000.0))
def test_posted_plan_costs_and_ends_no_worse(case, base):
    market, needed, options, first_slot, last_slot = case
    window = Window.of(market, needed, options, first_slot, last_slot)
    if window is None:
        return
    prices = posted_prices(market, base)
    plan = prices.plan(needed, window)
    every = list(every_schedule(market, needed, options, first_slot, last_slot))
    if not every:
        assert plan is None
        return
    costs = [posted_cost(prices, market, needed, other) for other in every]
    least = min(costs)
    paid = plan.vendor_micros + plan.operational_micros + plan.compute_micros + plan.memory_micros
    assert paid == pytest.approx(least)
    assert plan.vendor_micros + plan.operational_micros <= least * (1 + 1e-12)
    assert market.has_room(plan.placement, needed)
    done = sum(int(needed.samples[market.fleet.class_of_row[row]]) for row in plan.placement.rows)
    assert done == plan.samples >= needed.work_samples
    ends = {
        other.placement.slots[-1]
        for other, cost in zip(every, costs, strict=True)
        if cost == pytest.approx(least)
    }
    assert plan.placement.slots[-1] in ends


def test_unprofitable_near_room_keeps_cheapest_plan():
    """Two node-slots of three, of which the near one costs 1,000 to run. Far ones weigh so much that the plan
    would have it but for that."""
    of = fleet((1, 10.0, 4.0))
    market = Market(of, 3, 0, lambda index, slots: np.where(slots == 0, 1_000.0, 8.0))
    needed = demand(of, 10, [5], 1.0)
    window = Window.of(market, needed, [VendorOption(None, 0, 0)], 0, 2)
    prices = PostedPrices(market, Calendar(0.0, 600.0))
    prices.levels.base = 10**6
    plan = prices.plan(needed, window)
    assert plan.placement.slots == (1, 2)
    assert plan.operational_micros == 8
    market = Market(of, 3, 0, lambda index, slots: slots * 0.0 + 8.0)
    prices = PostedPrices(market, Calendar(0.0, 600.0))
    prices.levels.base = 10**6
    near = prices.plan(needed, Window.of(market, needed, [VendorOption(None, 0, 0)], 0, 2))
    assert near.placement.slots[0] == 0, "where it costs no more, it is taken"


@settings(max_examples=examples(500), deadline=None)
@given(small_cases(), st.floats(0.1, 50.0))
def test_replanned_task_only_raises_prices(case, base):
    market, needed, options, first_slot, last_slot = case
    window = Window.of(market, needed, options, first_slot, last_slot)
    prices = posted_prices(market, base)
    prices.levels.guard = 4 * base
    prices.compute_price[:] = prices.memory_price[:] = 0.0
    before = prices.compute_price.copy(), prices.memory_price.copy()
    plan = None if window is None else prices.replan(needed, window, set(), 0.0, 10**6)
    if plan is None:
        return
    assert (prices.compute_price >= before[0]).all()
    assert (prices.memory_price >= before[1]).all()
    columns, _, classes = market.locate(plan.placement)
    # An empty node-slot costs the base at least, and one of which something is taken more.
    empty = 0.5 * base * prices._node_units[classes]
    assert (prices.compute_price[columns, classes] > empty).all()
    assert (prices.memory_price[columns, classes] > empty).all()
