"""The earliest finish against brute force, how the baselines choose vendors, and nodes of one's own."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.baselines.on_arrival import (
    EarliestFinish,
    ExclusiveMarket,
    FixedPrice,
    cheapest_vendor,
    drawn_vendor,
    earliest_schedule,
    fastest_vendor,
)
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.mechanism.rising_prices import RisingPrices
from tests.support.examples import examples
from tests.support.markets import demand, every_schedule, fleet, small_cases

NO_VENDOR = VendorOption(None, 0, 0)


@settings(max_examples=examples(700), deadline=None)
@given(small_cases())
def test_no_plan_with_room_finishes_earlier(case):
    market, wanted, options, first, last = case
    option = options[0]
    window = Window.of(market, wanted, [option], first, last)
    found = window and earliest_schedule(market, wanted, window.columns, option)
    every = every_schedule(market, wanted, [option], first, last)
    earliest = min((schedule.placement.slots[-1] for schedule in every), default=None)
    assert (found.placement.slots[-1] if found else None) == earliest
    if found:
        assert found.samples >= wanted.work_samples
        market.reserve(found.placement, wanted)


def test_fullest_fitting_node_of_fastest_class():
    of = fleet((3, 10.0, 8.0), (1, 10.0, 8.0))
    market = Market(of, 1, 0, lambda *_: 0.0)
    market.free_samples[0] = [10.0, 4.0, 6.0, 4.0]
    wanted = demand(of, 4, [4, 2], 1.0)

    def row() -> int:
        found = earliest_schedule(market, wanted, slice(0, 1), NO_VENDOR)
        assert found is not None
        return found.placement.rows[0]

    assert row() == 1
    market.free_gib[0, 1] = 0.5
    assert row() == 2
    market.free_samples[0] = [10.0, 10.0, 10.0, 4.0]
    market.free_gib[0] = [8.0, 0.5, 8.0, 8.0]
    assert row() == 0, "of equal nodes the first"


CHOICES = [
    VendorOption("a", 5, 2),
    VendorOption("b", 5, 1),
    VendorOption("c", 1, 3),
    VendorOption("d", 9, 1),
    VendorOption("e", 0, 4),
]


def request(id: str = "j", work_samples: int = 2) -> Request:
    of = fleet((1, 10.0, 10.0))
    return Request(id, demand(of, work_samples, [1], 1.0), CHOICES, 0, 4)


def test_fastest_and_cheapest_vendor_meet_deadline():
    assert fastest_vendor(request(), 5) == CHOICES[1]
    assert cheapest_vendor(request(), 5) == CHOICES[2]
    assert cheapest_vendor(request(), 6) == CHOICES[4]
    assert cheapest_vendor(request(work_samples=4), 5) == CHOICES[1]
    assert fastest_vendor(request(work_samples=5), 5) is None


def test_vendors_in_time_are_drawn_by_id():
    drawn = Counter(drawn_vendor(request(f"job-{number}"), 5).vendor for number in range(4_000))
    assert set(drawn) == {"a", "b", "c", "d"}
    assert all(abs(count - 1_000) < 150 for count in drawn.values())
    shuffled = request("job-7")._replace(options=CHOICES[::-1])
    assert drawn_vendor(shuffled, 5) == drawn_vendor(request("job-7"), 5)
    assert drawn_vendor(request(work_samples=5), 5) is None


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(0, 40)), min_size=1, max_size=8),
    st.sampled_from(["eft", "ntm", "fixed"]),
)
def test_admitted_plan_fits_and_pays_its_price(tasks, name):
    of = fleet((2, 6.0, 6.0))
    build = ExclusiveMarket if name == "ntm" else Market
    market = build(of, 4, 0, lambda _, slot: 6.0 * slot)
    mechanism = FixedPrice(1_500) if name == "fixed" else EarliestFinish(fastest_vendor)
    auctioneer = Auctioneer(market, mechanism, RisingPrices(market, None))
    held = Counter[tuple[int, int]]()
    for number, (work, gib, bid_micros) in enumerate(tasks):
        wanted = demand(of, work, [min(work, 3)], float(gib))
        asked = Request(f"j{number}", wanted, [NO_VENDOR], 0, 3)
        appraisal = auctioneer.appraise(asked)
        award = auctioneer.decide(bid_micros, asked, appraisal)
        if award is None:
            assert appraisal.price is None or bid_micros <= appraisal.price.micros
            continue
        held.update(award.schedule.placement.node_slots())
        assert award.charge.micros == math.ceil(appraisal.price.micros) <= bid_micros
        if name == "fixed":
            assert award.charge.micros == math.ceil(1.5 * work)
        else:
            assert award.charge.micros == award.schedule.operational_micros
        assert (market.free_samples >= 0).all()
        assert (market.free_gib >= 0).all()
    assert not market.compute_price.any()
    assert auctioneer.welfare.planned_micros <= auctioneer.prices.bound_micros
    if name == "ntm":
        assert all(tasks_there == 1 for tasks_there in held.values())


def test_exclusive_market_offers_only_empty_nodes():
    of = fleet((2, 6.0, 6.0))
    market = ExclusiveMarket(of, 2, 0, lambda *_: 0.0)
    wanted = demand(of, 1, [1], 1.0)
    taken = Placement((0,), (1,))
    market.reserve(taken, wanted)
    assert not market.has_room(taken, wanted)
    with pytest.raises(ValueError, match="no room"):
        market.reserve(taken, wanted)
    assert market.node_slots(0, 2).free_samples.tolist() == [[6.0, 0.0], [6.0, 6.0]]
    market.release(taken, wanted)
    assert market.has_room(taken, wanted)
