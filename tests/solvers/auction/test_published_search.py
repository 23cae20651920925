"""Algorithm 2 as printed against a transcription of it, and against the exact search (erratum P3)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from solvers.auction.market.market import Market
from solvers.auction.market.window import VendorOption, Window, undominated
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.mechanism.primal_dual import published_schedule
from solvers.auction.mechanism.search import best_schedule
from tests.support.examples import examples
from tests.support.markets import critical_micros, demand, fleet, small_cases

NO_VENDOR = [VendorOption(None, 0, 0)]


def transcribed(market, needed, options, first_slot, last_slot, room_only):
    """The critical value of what Algorithm 2 finds, line by line: all work amounts, slots and nodes.

    What the text leaves open is settled as the code settles it: a sum beyond the work counts as the work, and
    of equal costs the first holds, from the largest amount down and nodes by class, then by price.
    """
    begin = max(first_slot, market.first_slot)
    end = min(last_slot, market.first_slot + market.horizon_slots - 1)
    return min(
        (
            option.price_micros + find_schedule(market, needed, begin + option.delay_slots, end, room_only)
            for option in options
        ),
        default=math.inf,
    )


def find_schedule(market, needed, begin, end, room_only):
    operational = market.operational(needed)
    classes = market.fleet.class_of_row
    # dp[w]: cost, highest prices, node-slots of both resources, and operational cost of the way there.
    table = {0: (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)}
    for slot in range(begin, end + 1):
        column = slot - market.first_slot
        compute, memory = market.compute_price[column], market.memory_price[column]
        nodes = sorted(range(len(classes)), key=lambda k: (classes[k], compute[k], memory[k], k))
        before = dict(table)
        for done in sorted(before, reverse=True):
            if done == needed.work_samples:
                continue
            _, highest_compute, highest_memory, compute_used, memory_used, spent = before[done]
            for k in nodes:
                samples = int(needed.samples[classes[k]])
                room = (
                    market.node_up[k]
                    and market.free_samples[column, k] >= samples
                    and market.free_gib[column, k] >= needed.memory_gib
                )
                if samples == 0 or (room_only and not room):
                    continue
                lambda_hat, phi_hat = max(highest_compute, compute[k]), max(highest_memory, memory[k])
                s = compute_used + needed.compute_share[classes[k]]
                r = memory_used + needed.memory_share[classes[k]]
                e = spent + operational[column, classes[k]]
                cost = e + lambda_hat * s + phi_hat * r
                target = min(done + samples, needed.work_samples)
                if cost < table.get(target, (math.inf,))[0]:
                    table[target] = (cost, lambda_hat, phi_hat, s, r, e)
    return table.get(needed.work_samples, (math.inf,))[0]


@settings(max_examples=examples(1_000), deadline=None)
@given(small_cases())
def test_it_finds_what_algorithm_2_as_printed_finds(case):
    market, needed, options, first, last = case
    window = Window.of(*case)
    for room_only in (True, False):
        expected = transcribed(*case, room_only)
        request = Request("j", needed, options, first, last)
        found = window and published_schedule(market, request, window, room_only)
        cost = math.inf if found is None else critical_micros(found)
        assert cost == pytest.approx(expected, rel=1e-12)
        if found is not None:
            assert found.samples >= needed.work_samples
            assert len(set(found.placement.slots)) == len(found.placement.slots)


@settings(max_examples=examples(500), deadline=None)
@given(small_cases())
def test_the_exact_search_is_never_dearer(case):
    market, needed, options, first, last = case
    window = Window.of(*case)
    request = Request("j", needed, options, first, last)
    published = window and published_schedule(market, request, window, room_only=True)
    best = window and best_schedule(market, needed, window, room_only=True)
    if published is None:
        assert best is None
        return
    assert best is not None
    assert critical_micros(best) <= critical_micros(published) * (1 + 1e-12)


def test_running_maximum_misses_the_optimum():
    # For one sample the table keeps slot 0 (price 2, no cost) and drops slot 1 (no price, cost 3), although
    # slot 1 wins once a second slot would have to pay the ceiling of slot 0 too.
    of = fleet((2, 10.0, 10.0))
    costs = np.array([0.0, 3.0, 0.0])
    market = Market(of, 3, 0, lambda _, slots: costs[slots] * 10)
    market.compute_price[0, :] = 20.0
    market.price_order.sort(0)
    needed = demand(of, 2, [1], 1.0)
    window = Window.of(market, needed, NO_VENDOR, 0, 2)
    assert window is not None
    best = best_schedule(market, needed, window, room_only=True)
    published = published_schedule(market, Request("j", needed, NO_VENDOR, 0, 2), window, room_only=True)
    assert best is not None
    assert published is not None
    assert (best.placement.slots, critical_micros(best)) == ((1, 2), 3.0)
    assert (published.placement.slots, critical_micros(published)) == ((0, 2), 4.0)


def test_dominated_vendor_may_avoid_table_error():
    of = fleet((2, 10.0, 10.0))
    costs = np.array([0.0, 30.0, 0.0])
    market = Market(of, 3, 0, lambda _, slots: costs[slots] * 10)
    market.compute_price[0, :] = 200.0
    market.price_order.sort(0)
    needed = demand(of, 2, [1], 1.0)
    options = [VendorOption("fast", 0, 0), VendorOption("slow", 1, 1)]
    assert undominated(options) == options[:1]
    window = Window.of(market, needed, options, 0, 2)
    assert window is not None
    found = published_schedule(market, Request("j", needed, options, 0, 2), window, room_only=True)
    assert found is not None
    assert (found.vendor, found.placement.slots, critical_micros(found)) == ("slow", (1, 2), 31.0)
