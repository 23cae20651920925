"""Eqs. 7 and 8, Lemma 2 and the dual certificate against the offline optimum."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solvers.auction.market.market import HIGHEST_PRICE_MICROS, Market, Placement
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.certificate import least_additive_cost
from solvers.auction.mechanism.mechanism import PriceRises, Request
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


def test_prices_follow_equations_7_and_8():
    of = fleet((1, 10.0, 8.0))
    market = Market(of, 2, 0, lambda *_: 0.0)
    wanted = demand(of, 5, [5], 2.0)
    rises = market.raise_prices(Placement((1,), (0,)), wanted, 6.0, alpha=4.0, beta=2.0)
    # Shares are 1/2 and 1/4: first 0 (1 + 1/2) + 4 x 6 x 1/2, and 0 (1 + 1/4) + 2 x 6 x 1/4.
    assert (market.compute_price[1, 0], market.memory_price[1, 0]) == (12.0, 3.0)
    assert rises == [12.0, 3.0]
    market.raise_prices(Placement((1,), (0,)), wanted, 6.0, alpha=4.0, beta=2.0)
    assert (market.compute_price[1, 0], market.memory_price[1, 0]) == (12 * 1.5 + 12, 3 * 1.25 + 3)
    assert market.compute_price[0, 0] == 0.0


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10), st.floats(1.0, 9.0)), min_size=1, max_size=30))
def test_full_node_slot_exceeds_any_declared_bid(uses):
    # Lemma 2: with b-bar at least the money unit (1), use of the whole capacity lifts the price to alpha.
    of = fleet((1, 10.0, 8.0))
    market = Market(of, 1, 0, lambda *_: 0.0)
    used = 0
    for samples, density in uses:
        wanted = demand(of, samples, [samples], 1.0)
        market.raise_prices(Placement((0,), (0,)), wanted, density, alpha=5.0, beta=5.0)
        used += samples
    assume(used >= 10)
    assert market.compute_price[0, 0] >= 5.0 * (1 - 1e-12)


def test_prices_stop_above_any_bid():
    of = fleet((1, 10.0, 8.0))
    market = Market(of, 1, 0, lambda *_: 0.0)
    wanted = demand(of, 10, [10], 8.0)
    for _ in range(5_000):
        market.raise_prices(Placement((0,), (0,)), wanted, 1e24, alpha=1e15, beta=1e15)
    assert market.compute_price[0, 0] == market.memory_price[0, 0] == HIGHEST_PRICE_MICROS
    assert market.raise_prices(Placement((0,), (0,)), wanted, 1e24, alpha=1e15, beta=1e15) == [0.0, 0.0]


def offline_optimum(cases, capacity_samples, capacity_gib, build):
    """The best welfare in hindsight, by trying every combination of plans."""
    choices = []
    for bid_micros, wanted, first, last in cases:
        plans = [
            (bid_micros - s.operational_micros, s.placement, wanted)
            for s in every_schedule(build(), wanted, NO_VENDOR, first, last)
        ]
        choices.append([(0, None, wanted), *plans])
    best = 0
    for picks in itertools.product(*choices):
        used: dict[tuple[int, int], list[float]] = {}
        for _, placement, wanted in picks:
            if placement is not None:
                for node_slot in zip(placement.slots, placement.rows, strict=True):
                    held = used.setdefault(node_slot, [0, 0])
                    held[0] += int(wanted.samples[0])
                    held[1] += wanted.memory_gib
        if all(s <= capacity_samples and m <= capacity_gib for s, m in used.values()):
            best = max(best, sum(welfare for welfare, _, _ in picks))
    return best


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4), st.integers(0, 1)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 2),
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
)
def test_dual_bound_exceeds_offline_optimum(tasks, nodes, alpha):
    of = fleet((nodes, 6.0, 6.0))

    def build():
        return Market(of, 2, 0, lambda _, slots: slots)

    auctioneer = primal_dual(build(), PriceRises(alpha, alpha))
    cases = []
    for bid_micros, work, gib, first in tasks:
        wanted = demand(of, work, [min(work, 4)], float(gib))
        cases.append((bid_micros, wanted, first, 1))
        request = Request("j", wanted, NO_VENDOR, first, 1)
        auctioneer.decide(bid_micros, request, auctioneer.appraise(request))
    optimum = offline_optimum(cases, 6.0, 6.0, build)
    assert auctioneer.welfare.planned_micros <= optimum <= auctioneer.prices.bound_micros


def test_printed_mu_is_too_small():
    # Erratum P8: mu = max(0, F) prices both node-slots at the dearer one's price; constraint 6a prices each
    # at its own, so a plan is left whose surplus exceeds the printed mu: the printed point is infeasible.
    of = fleet((1, 10.0, 8.0))
    auctioneer = primal_dual(Market(of, 2, 0, lambda *_: 0.0), PriceRises(1.0, 1.0))
    auctioneer.market.compute_price[0, 0] = 40.0
    auctioneer.market.price_order.sort(0)
    wanted = demand(of, 10, [5], 1.0)
    appraisal = auctioneer.appraise(Request("j", wanted, NO_VENDOR, 0, 1))
    assert appraisal.schedule is not None
    bid_micros = 45
    printed = max(0.0, bid_micros - critical_micros(appraisal.schedule))
    surplus = max(
        bid_micros - additive_cost(auctioneer.market, wanted, plan)
        for plan in every_schedule(auctioneer.market, wanted, NO_VENDOR, 0, 1)
    )
    assert printed == pytest.approx(5.0)
    assert surplus == pytest.approx(25.0)
    assert appraisal.window is not None
    least = least_additive_cost(auctioneer.market, wanted, appraisal.window)
    assert bid_micros - least == pytest.approx(surplus)


@pytest.mark.parametrize(("order", "rises"), [("room_first", False), ("published", True)])
def test_refused_task_raises_prices_in_published_order(order, rises):
    # Erratum P2: Algorithm 1 as printed raises prices first and checks capacity after.
    of = fleet((1, 6.0, 6.0))
    auctioneer = primal_dual(Market(of, 1, 0, lambda *_: 0.0), PriceRises(1.0, 1.0), order=order)
    wanted = demand(of, 4, [4], 1.0)
    request = Request("j", wanted, NO_VENDOR, 0, 0)
    assert auctioneer.decide(10, request, auctioneer.appraise(request)) is not None
    before = auctioneer.market.compute_price.copy()
    assert auctioneer.decide(10**9, request, auctioneer.appraise(request)) is None
    assert bool((auctioneer.market.compute_price > before).any()) is rises


def test_absurd_bid_raises_prices_like_densest_expected():
    def price_after(bid_micros: int) -> float:
        of = fleet((1, 6.0, 6.0))
        auctioneer = primal_dual(Market(of, 1, 0, lambda *_: 0.0), PriceRises(1.0, 1.0, 30.0))
        wanted = demand(of, 1, [1], 1.0)
        request = Request("j", wanted, NO_VENDOR, 0, 0)
        assert auctioneer.decide(bid_micros, request, auctioneer.appraise(request))
        return float(auctioneer.market.compute_price[0, 0])

    # A third of a node-slot in all: 10 micros are 30 per node-slot.
    assert price_after(5) < price_after(10) == price_after(10**15) == 5.0


@settings(max_examples=examples(300), deadline=None)
@given(small_cases(), st.integers(0, 60), st.sampled_from([0.0, 0.01, 1.0]))
def test_admissible_plan_raises_bound_by_its_welfare(case, surplus, alpha):
    # Weak duality, plan by plan: mu_i and the rises of prices are worth no less than the plan, whatever
    # becomes of it and of the others. Of any plan, since baselines choose by other rules than the price.
    market, wanted, options, _, _ = case
    # The whole window, a vendor without delay and no more work than fits: there is always a plan.
    first, last = market.first_slot, market.first_slot + market.horizon_slots - 1
    options = [*options, VendorOption("at once", 5, 0)]
    most = int(wanted.samples.max()) * market.horizon_slots
    wanted = wanted._replace(work_samples=min(wanted.work_samples, most))
    window = Window.of(market, wanted, options, first, last)
    assert window is not None
    least = least_additive_cost(market, wanted, window)
    for plan in itertools.islice(every_schedule(market, wanted, options, first, last, room_only=False), 20):
        bid_micros = math.ceil(least) + surplus
        welfare = bid_micros - plan.vendor_micros - plan.operational_micros
        before = market.compute_price.copy(), market.memory_price.copy()
        rises = market.raise_prices(plan.placement, wanted, max(welfare, 0), alpha, alpha)
        market.compute_price[:], market.memory_price[:] = before
        assert math.ceil(bid_micros - least) + math.ceil(math.fsum(rises)) >= welfare


def test_extreme_amounts_keep_plan_below_bound():
    of = fleet((1, 1_000.0, 8.0))
    market = Market(of, 300, 0, lambda *_: 0.0)
    market.compute_price[:], market.memory_price[:] = 33016112084217.438, 20325730120105.32
    market.price_order.sort(0)
    auctioneer = primal_dual(market, PriceRises(0.0, 0.0))
    request = Request("j", demand(of, 4_233, [17], 1.0), NO_VENDOR, 0, 299)
    bid_micros = 772_395_552_440_773
    assert auctioneer.decide(bid_micros, request, auctioneer.appraise(request)) is not None
    assert bid_micros == auctioneer.welfare.planned_micros <= auctioneer.prices.bound_micros
