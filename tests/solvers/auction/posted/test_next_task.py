"""A node-slot has the price of its class after one more large task, where those are sold, whoever buys it."""

import pytest

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.mechanism import Counted
from solvers.auction.mechanism.search import Schedule
from solvers.auction.posted.prices import PostedPrices
from solvers.auction.posted.room import MarketRoom
from tests.support.markets import demand, fleet

BASE, GUARD = 1_000.0, 9_000.0
FULL = BASE + 0.7 * (GUARD - BASE)
"""Price of a unit in a full class, in micros."""
UNITS = 10.0
NODES = fleet((2, UNITS, 8.0))


def task(samples: int) -> Demand:
    """A task of one node-slot, with as large a share of memory as of compute."""
    return demand(NODES, samples, [samples], 0.8 * samples)


def planned(market: Market, prices: PostedPrices, needed: Demand) -> Schedule:
    """Return the plan of a task in the first slot."""
    window = Window.of(market, needed, [VendorOption(None, 0, 0)], 0, 0)
    assert window is not None
    plan = prices.plan(needed, window)
    assert plan is not None
    return plan


def sold(samples: int, sales: int) -> tuple[Market, PostedPrices]:
    """Return two nodes with three slots that have sold so many tasks in the first one, at offers that raise
    no level."""
    market = Market(NODES, 3, 0, lambda _index, slots: slots * 0.0 + 8.0)
    prices = PostedPrices(market, Calendar(0.0, 600.0))
    prices.levels.base, prices.levels.guard = BASE, GUARD
    for _ in range(sales):
        plan = planned(market, prices, task(samples))
        market.reserve(plan.placement, task(samples))
        units = float(samples)
        prices.awarded(plan, task(samples), 0, Counted(1, 1, units, units, window_slots=1))
    return market, prices


def unit_price(prices: PostedPrices, slot: int) -> float:
    return float(prices.compute_price[slot, 0] + prices.memory_price[slot, 0]) / UNITS


@pytest.mark.parametrize(
    ("samples", "sales", "used_after"),
    [(8, 1, 1.0), (6, 1, 1.0), (5, 1, 0.25), (5, 2, 0.5), (2, 5, 0.5)],
)
def test_node_slot_costs_as_after_next_task(samples, sales, used_after):
    """After one task of eight tenths of a node, the second node of two is the last place for such a task.
    Among tasks of at most half of a node, it has the price of what is used."""
    _, prices = sold(samples, sales)
    assert unit_price(prices, 0) == pytest.approx(BASE + 0.7 * (GUARD - BASE) * used_after**2)


@pytest.mark.parametrize("samples", [1, 2, 4, 8])
def test_price_of_unit_is_equal_for_all_sizes(samples):
    """Otherwise a user would claim another speed, or other memory, than the true one."""
    market, prices = sold(8, 1)
    plan = planned(market, prices, task(samples))
    assert plan.compute_micros + plan.memory_micros == pytest.approx(FULL * samples)


def test_what_large_tasks_leave_is_not_free():
    """Four full node-slots of six are left to tasks of eight tenths of a node: four times eight units."""
    market, prices = sold(8, 2)
    free, whole = MarketRoom(market).ahead(3, 0.5, prices.curve.packed_part)
    assert (free, whole) == (pytest.approx(4 * 8.0), 6 * UNITS)
