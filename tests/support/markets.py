"""Small markets and demands for the tests of the auction."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from schemas.base import HOURS_PER_DAY
from schemas.cells import Tariff
from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Calendar, Fleet, NodeClass
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.mechanism.auctioneer import Auctioneer, Award
from solvers.auction.mechanism.mechanism import PriceRises, Request
from solvers.auction.mechanism.primal_dual import PrimalDual
from solvers.auction.mechanism.rising_prices import RisingPrices
from solvers.auction.mechanism.search import Schedule, describe
from solvers.auction.posted.mechanism import Posted
from solvers.auction.posted.prices import PostedPrices

FLAT = Tariff(name="flat", micros_per_kwh=(0,) * HOURS_PER_DAY)


def fleet(*classes: tuple[int, float, float]) -> Fleet:
    """One class per (nodes, samples per slot, GiB)."""
    node_classes: list[NodeClass] = []
    names: list[str] = []
    for index, (nodes, samples, gib) in enumerate(classes):
        node_classes.append(
            NodeClass(f"gpu{index}", FLAT, 1.0, float(samples), gib, len(names), len(names) + nodes)
        )
        names += [f"node{index}-{number}" for number in range(nodes)]
    return Fleet(
        nodes=tuple(names),
        classes=tuple(node_classes),
    )


def critical_micros(schedule: Schedule) -> float:
    """Critical value q + e + resource prices: the bid wins iff it is higher (erratum P1)."""
    return math.fsum(
        (
            schedule.vendor_micros,
            schedule.operational_micros,
            schedule.compute_micros,
            schedule.memory_micros,
        )
    )


def demand(of: Fleet, work_samples: int, samples: list[int], memory_gib: float) -> Demand:
    """A demand with the given samples per slot on each class."""
    return Demand.sized(work_samples, np.array(samples, np.int64), memory_gib, of)


@st.composite
def small_cases(
    draw: st.DrawFn, most_classes: int = 2, most_cost_micros: int = 9
) -> tuple[Market, Demand, list[VendorOption], int, int]:
    """A market of a few classes, four nodes and five slots in a random state, and a task for it, for which
    there is room more often than not."""
    nodes = st.integers(1, 2 if most_classes == 2 else 1)
    shapes = draw(
        st.lists(st.tuples(nodes, st.integers(6, 12), st.integers(4, 8)), min_size=1, max_size=most_classes)
    )
    of = fleet(*[(nodes, float(samples), float(gib)) for nodes, samples, gib in shapes])
    slots = draw(st.integers(1, 5))
    cost = st.integers(0, most_cost_micros)
    costs = draw(st.lists(cost, min_size=slots * len(shapes), max_size=slots * len(shapes)))
    market = Market(of, slots, 3, lambda index, slots: np.array(costs)[(slots - 3) * len(shapes) + index])
    levels = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, 7.0])
    for slot in range(slots):
        for row, index in enumerate(of.class_of_row):
            market.compute_price[slot, row] = draw(levels)
            market.memory_price[slot, row] = draw(levels)
            for free, capacity in (
                (market.free_samples, int(of.classes[index].capacity_samples)),
                (market.free_gib, int(of.classes[index].capacity_gib)),
            ):
                free[slot, row] = draw(st.just(capacity) | st.integers(0, capacity))
    market.price_order.sort(0)
    up = st.sampled_from([True, True, True, False])
    market.node_up[:] = draw(st.lists(up, min_size=len(of.nodes), max_size=len(of.nodes)))
    samples = [draw(st.integers(0 if index else 1, 5)) for index in range(len(shapes))]
    most_work_samples = max(samples) * draw(st.integers(1, slots))
    needed = demand(of, draw(st.integers(1, most_work_samples)), samples, float(draw(st.integers(1, 4))))
    options = [
        VendorOption(f"vendor{number}", draw(st.integers(0, 12)), draw(st.sampled_from([0, 0, 1, slots])))
        for number in range(draw(st.integers(1, 3)))
    ]
    first = draw(st.integers(1, 2 + slots))
    return market, needed, options, first, draw(st.integers(max(first, 3), 9))


def every_schedule(
    market: Market,
    needed: Demand,
    options: list[VendorOption],
    first_slot: int,
    last_slot: int,
    room_only: bool = True,
) -> Iterator[Schedule]:
    """All plans that satisfy constraints 4a to 4e (and, with `room_only`, have room), by brute force."""
    begin, end = (
        max(first_slot, market.first_slot),
        min(last_slot, market.first_slot + market.horizon_slots - 1),
    )
    slots = range(begin, end + 1)
    choices: list[list[int | None]] = []
    for slot in slots:
        column = slot - market.first_slot
        rows: list[int | None] = [None]
        for row, index in enumerate(market.fleet.class_of_row):
            room = (
                market.node_up[row]
                and market.free_samples[column, row] >= needed.samples[index]
                and market.free_gib[column, row] >= needed.memory_gib
            )
            if needed.samples[index] > 0 and (room or not room_only):
                rows.append(row)
        choices.append(rows)
    for picks in itertools.product(*choices):
        taken = [(slot, row) for slot, row in zip(slots, picks, strict=True) if row is not None]
        done = sum(int(needed.samples[market.fleet.class_of_row[row]]) for _, row in taken)
        if done < needed.work_samples:
            continue
        placement = Placement(tuple(slot for slot, _ in taken), tuple(row for _, row in taken))
        for option in options:
            if taken[0][0] >= begin + option.delay_slots:
                yield describe(market, needed, option, placement)


def additive_cost(market: Market, needed: Demand, schedule: Schedule) -> float:
    """q + sum(e + s lambda + r phi), cell by cell (constraint 6a)."""
    prices = []
    for slot, row in zip(schedule.placement.slots, schedule.placement.rows, strict=True):
        index = market.fleet.class_of_row[row]
        column = slot - market.first_slot
        prices.append(market.compute_price[column, row] * needed.compute_share[index])
        prices.append(market.memory_price[column, row] * needed.memory_share[index])
    return math.fsum([schedule.vendor_micros, schedule.operational_micros, *prices])


def primal_dual(market: Market, rises: PriceRises, **rules: Any) -> Auctioneer:
    """The auctioneer of declared bounds, with rules of `PrimalDual`."""
    return Auctioneer(market, PrimalDual(payment="critical", **rules), RisingPrices(market, rises))


def posted(market: Market, slot_s: float) -> Auctioneer:
    """The auctioneer with nothing declared, whose slot 0 begins a day."""
    prices = PostedPrices(market, Calendar(0.0, slot_s))
    return Auctioneer(market, Posted(prices), prices)


def award(
    auctioneer: Auctioneer, bid_micros: int, needed: Demand, first_slot: int, last_slot: int
) -> Award | None:
    """Return a bid's award for a task without a vendor that may run in these slots; None if it loses."""
    request = Request("j", needed, [VendorOption(None, 0, 0)], first_slot, last_slot)
    return auctioneer.decide(bid_micros, request, auctioneer.appraise(request))
