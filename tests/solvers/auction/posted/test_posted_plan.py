"""The plan that a task gets at posted prices, and what it pays for it, against all plans there are."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.fleet import Calendar
from solvers.auction.market.window import Window
from solvers.auction.mechanism.search import Schedule
from solvers.auction.posted.prices import PostedPrices
from tests.support.examples import examples
from tests.support.markets import every_schedule, small_cases

FLOOR_PART = 1 / 8


def posted_cost(prices: PostedPrices, market, wanted, plan: Schedule) -> float:
    """Of a plan: vendor, operation, and each node-slot's room at its posted price or at the least."""
    operational = market.operational(wanted)
    parts = [plan.vendor_micros, plan.operational_micros]
    for slot, row in zip(plan.placement.slots, plan.placement.rows, strict=True):
        column, index = slot - market.first_slot, market.fleet.class_of_row[row]
        compute_share, memory_share = wanted.compute_share[index], wanted.memory_share[index]
        reserved = market.full_costs[column, index] * max(compute_share, memory_share)
        room = prices.compute_price[column, index] * compute_share
        room += prices.memory_price[column, index] * memory_share
        parts.append(max(room, FLOOR_PART * reserved, reserved - operational[column, index]))
    return math.fsum(parts)


@settings(max_examples=examples(1_500), deadline=None)
@given(small_cases(), st.floats(0.0, 50.0))
def test_it_costs_what_the_cheapest_costs_ends_no_earlier_and_never_costs_the_provider_more(case, base):
    market, wanted, options, first_slot, last_slot = case
    window = Window.of(market, wanted, options, first_slot, last_slot)
    if window is None:
        return
    prices = PostedPrices(market, Calendar(0.0, 600.0))
    starts = [node_class.start for node_class in market.fleet.classes]
    prices.compute_price[:] = market.compute_price[:, starts]
    prices.memory_price[:] = market.memory_price[:, starts]
    prices.levels.base = base
    plan = prices.plan(wanted, window)
    every = list(every_schedule(market, wanted, options, first_slot, last_slot))
    if not every:
        assert plan is None
        return
    costs = [posted_cost(prices, market, wanted, other) for other in every]
    least = min(costs)
    paid = plan.vendor_micros + plan.operational_micros + plan.compute_micros + plan.memory_micros
    assert paid == pytest.approx(least)
    assert plan.vendor_micros + plan.operational_micros <= least * (1 + 1e-12)
    assert market.has_room(plan.placement, wanted)
    done = sum(int(wanted.samples[market.fleet.class_of_row[row]]) for row in plan.placement.rows)
    assert done == plan.samples >= wanted.work_samples
    ends = {
        other.placement.slots[-1]
        for other, cost in zip(every, costs, strict=True)
        if cost == pytest.approx(least)
    }
    assert plan.placement.slots[-1] in ends
