"""The cheapest plan at posted prices, against all plans there are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.market import placement_of
from solvers.auction.market.node_slots import fullest_rows
from solvers.auction.market.window import Window
from solvers.auction.mechanism.search import SEARCH_BUDGET_STEPS, Schedule, describe
from solvers.auction.posted.plans import cheapest
from tests.support.examples import examples
from tests.support.markets import additive_cost, every_schedule, small_cases


@settings(max_examples=examples(1_500), deadline=None)
@given(small_cases(), st.sampled_from((0.0, 1 / 8, 2.0)))
def test_plan_is_cheapest_with_room(case, floor_part):
    market, wanted, options, first_slot, last_slot = case
    starts = [node_class.start for node_class in market.fleet.classes]
    compute, memory = market.compute_price[:, starts], market.memory_price[:, starts]
    classes = np.array(market.fleet.class_of_row)
    market.compute_price[:], market.memory_price[:] = compute[:, classes], memory[:, classes]
    window = Window.of(market, wanted, options, first_slot, last_slot)
    plans = [] if window is None else list(every_schedule(market, wanted, options, first_slot, last_slot))
    if window is None:
        return
    columns = window.columns
    floor = market.full_costs * floor_part

    def cost(plan: Schedule) -> float:
        rooms = []
        for slot, row in zip(plan.placement.slots, plan.placement.rows, strict=True):
            column, index = slot - market.first_slot, market.fleet.class_of_row[row]
            room = compute[column, index] * wanted.compute_share[index]
            room += memory[column, index] * wanted.memory_share[index]
            rooms.append(max(room, floor[column, index]))
        return math.fsum([plan.vendor_micros, plan.operational_micros, *rooms])

    found = cheapest(
        fullest_rows(market.node_slots(columns.start, columns.stop), wanted),
        wanted,
        compute[columns].copy(),
        memory[columns].copy(),
        floor[columns],
        window.operational,
        window.delays_slots,
        window.prices_micros,
        SEARCH_BUDGET_STEPS,
    )
    if not plans:
        assert (found.option, found.cost) == (-1, math.inf)
        return
    least = min(cost(plan) for plan in plans)
    assert found.cost == pytest.approx(least)
    assert found.bound == pytest.approx(least)
    placement = placement_of(found.rows, market.first_slot + columns.start)
    assert market.has_room(placement, wanted)
    plan = describe(market, wanted, window.options[found.option], placement)
    assert plan.samples >= wanted.work_samples
    assert cost(plan) == pytest.approx(least)
    if floor_part == 0.0:
        parts = plan.vendor_micros + plan.operational_micros + found.compute + found.memory
        assert found.cost == pytest.approx(parts)
        assert additive_cost(market, wanted, plan) == pytest.approx(least)
