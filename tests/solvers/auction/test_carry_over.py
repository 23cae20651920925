"""A market adopts the state of the one before it when nodes or the window of a zone change."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import EmptyPrices, Market, carry_over_prices, carry_over_use
from solvers.auction.market.node_slots import PriceOrder
from tests.support.examples import examples
from tests.support.markets import small_cases


def changed(data: st.DataObject, before: Fleet) -> Fleet:
    """A fleet of one class that has some of the nodes, and perhaps others, of some capacity."""
    kept = [node for node in before.nodes if data.draw(st.booleans())]
    nodes = tuple(sorted({*kept, *data.draw(st.sets(st.sampled_from(["x1", "x2"])))})) or ("x1",)
    node_class = replace(
        before.classes[0],
        capacity_samples=float(data.draw(st.integers(20, 40))),
        capacity_gib=float(data.draw(st.integers(20, 40))),
        start=0,
        stop=len(nodes),
    )
    return Fleet(nodes, (node_class,))


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(st.data())
def test_taken_room_stays_and_nothing_gets_cheaper(data: st.DataObject) -> None:
    before, *_ = data.draw(small_cases())
    price = data.draw(st.sampled_from([0.0, 1.5]))
    opening = EmptyPrices(compute=lambda _index, _slots: price, memory=lambda _index, _slots: price)
    fleet = changed(data, before.fleet)
    slots = data.draw(st.integers(1, 7))
    after = Market(fleet, slots, before.first_slot, lambda _index, _slots: 1.0, opening)
    open_until = before.first_slot + data.draw(st.integers(0, before.horizon_slots))
    opened = min(open_until - before.first_slot, slots)

    carry_over_use(before, after)
    rises = carry_over_prices(before, after, open_until)

    grown: list[float] = []
    for new, node in enumerate(fleet.nodes):
        old = before.fleet.row_of.get(node)
        for column in range(slots):
            at_first = old is None or column >= before.horizon_slots
            taken = 0.0 if at_first else before.capacity_samples[old] - before.free_samples[column, old]
            assert after.free_samples[column, new] == after.capacity_samples[new] - taken
            if at_first:
                assert after.compute_price[column, new] == price
                grown += [after.compute_price[column, new], after.memory_price[column, new]] * (
                    column < opened
                )
                continue
            for name, capacity in (("compute_price", "capacity_samples"), ("memory_price", "capacity_gib")):
                held, now = getattr(before, name)[column, old], getattr(after, name)[column, new]
                if column < opened:
                    scale = max(getattr(after, capacity)[new] / getattr(before, capacity)[old], 1.0)
                    assert now == held * scale
                    grown.append(now - held)
                else:
                    assert now == max(held + price, price), "what it has risen by, on top of the new opening"
        if old is not None:
            assert after.node_up[new] == before.node_up[old]
    assert math.isclose(math.fsum(rises), math.fsum(grown), abs_tol=1e-9), "the bound grows by as much"
    anew = PriceOrder(np.array([0, len(fleet.nodes)]), after.compute_price, after.memory_price)
    assert (after.price_order.rows == anew.rows).all()
