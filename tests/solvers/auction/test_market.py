"""A market's arrays are laid out alike whatever its shape, so that a kernel is compiled once for them all."""

import math
from fractions import Fraction

import numba
import pytest

from solvers.auction.baselines.on_arrival import ExclusiveMarket
from solvers.auction.market.market import EmptyPrices, Market
from solvers.auction.market.node_slots import NodeSlots
from tests.support.markets import fleet

ONE_NODE, ONE_CLASS, TWO_CLASSES = (
    fleet((1, 8.0, 8.0)),
    fleet((3, 8.0, 8.0)),
    fleet((2, 8.0, 8.0), (3, 4.0, 8.0)),
)


def handed_out(market: Market) -> list[NodeSlots]:
    """Node-slots of every stretch of slots, none at all included."""
    stretches = [
        (start, stop)
        for start in range(market.horizon_slots + 1)
        for stop in range(start, market.horizon_slots + 1)
    ]
    return [
        node_slots(*stretch)
        for stretch in stretches
        for node_slots in (market.node_slots, market.emptied_node_slots)
    ]


@pytest.mark.parametrize(
    "of", [ONE_NODE, ONE_CLASS, TWO_CLASSES], ids=["one node", "one class", "two classes"]
)
@pytest.mark.parametrize("kind", [Market, ExclusiveMarket])
def test_all_node_slots_are_of_one_compiled_type(kind, of):
    usual = Market(TWO_CLASSES, 4, 0, lambda *_: 1.0)
    market = kind(of, 4, 0, lambda *_: 1.0)
    restored = kind(of, 4, 0, lambda *_: 1.0)
    market.advance(3)
    restored.restore(market.state())
    types = {numba.typeof(node_slots) for each in (market, restored) for node_slots in handed_out(each)}
    assert types == {numba.typeof(usual.node_slots(1, 3))}
    assert {numba.typeof(each.full_costs) for each in (market, restored)} == {numba.typeof(usual.full_costs)}


def test_opening_prices_sum_exactly_by_class():
    opening = EmptyPrices(
        compute=lambda index, slot: 0.1 + index * 1e15 + slot / 3, memory=lambda _index, slot: slot * 1e-9 / 7
    )
    market = Market(TWO_CLASSES, 4, 0, lambda *_: 1.0, opening)
    every = [*market.opening_compute_price(1, 3).flat, *market.opening_memory_price(1, 3).flat]
    by_class = market.opening_sums(1, 3)
    assert sum(map(Fraction, by_class)) == sum(map(Fraction, every))
    assert math.fsum(by_class) == math.fsum(every)
