"""EFT, NTM and a fixed price (section 5.1): the earliest finish, decided on arrival."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.market import Market, Placement, placement_of
from solvers.auction.market.node_slots import NodeSlots, fullest_row
from solvers.auction.market.window import VendorOption, Window
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.auction.mechanism.mechanism import Charge, Price, Request
from solvers.auction.mechanism.search import Schedule, describe
from solvers.compiled import Ints, kernel

VendorChoice = Callable[[Request, int], VendorOption | None]
"""Function that chooses the vendor of a request with a number of slots; None if none is in time."""


def fastest_vendor(request: Request, slots: int) -> VendorOption | None:
    """Return the vendor with the lowest delay; ties by price, then id."""
    return min(
        in_time(request, slots), key=lambda o: (o.delay_slots, o.price_micros, o.vendor or ""), default=None
    )


def cheapest_vendor(request: Request, slots: int) -> VendorOption | None:
    """Return the vendor with the lowest price; ties by delay, then id."""
    return min(
        in_time(request, slots), key=lambda o: (o.price_micros, o.delay_slots, o.vendor or ""), default=None
    )


def drawn_vendor(request: Request, slots: int) -> VendorOption | None:
    """Return a random vendor, uniformly: a hash of the request's id decides, so that no state is kept."""
    options = sorted(in_time(request, slots), key=lambda option: option.vendor or "")
    if not options:
        return None
    digest = hashlib.blake2b(f"vendor/{request.id}".encode(), digest_size=16).digest()
    return options[int.from_bytes(digest) % len(options)]


def in_time(request: Request, slots: int) -> list[VendorOption]:
    """Return the vendors whose delay leaves enough time for the work: an empty market could do it within so
    many slots."""
    most_samples = int(request.demand.samples.max())
    return [
        option
        for option in request.options
        if most_samples * (slots - option.delay_slots) >= request.demand.work_samples
    ]


@dataclass(frozen=True)
class EarliestFinish:
    """See `Mechanism`: the earliest finish after one vendor's delay, admitted iff the bid is above its cost.

    The paper does not state for these baselines that no task loses money: here they get a fair chance.
    """

    choose_vendor: VendorChoice

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        option = self.choose_vendor(request, window.slots)
        return None if option is None else earliest_schedule(market, request.demand, window.columns, option)

    def price(self, schedule: Schedule, _work_samples: int) -> Price:
        """Return the price: vendor and operation."""
        return Price(schedule.vendor_micros, schedule.operational_micros, 0.0, 0.0)

    def charge(self, price: Price) -> Charge:
        return Charge(math.ceil(price.micros), price.operational_micros)


@dataclass(frozen=True)
class FixedPrice:
    """See `Mechanism`: first come, first served by the cheapest vendor, at a fixed price for the work."""

    price_per_thousand_samples_micros: int

    def plan(self, market: Market, request: Request, window: Window) -> Schedule | None:
        return EarliestFinish(cheapest_vendor).plan(market, request, window)

    def price(self, schedule: Schedule, work_samples: int) -> Price:
        """Return the vendor's price, and the fixed one for the rest: operation is not charged separately."""
        work_micros = self.price_per_thousand_samples_micros * work_samples / 1_000
        return Price(schedule.vendor_micros, 0, work_micros, 0.0)

    def charge(self, price: Price) -> Charge:
        return Charge(math.ceil(price.micros), 0)


def earliest_schedule(
    market: Market, demand: Demand, columns: slice, option: VendorOption
) -> Schedule | None:
    """Return the plan that ends first after a vendor's delay; None if none is in time.

    In each slot it uses the fastest class of nodes that has room, and of its nodes the fullest one with room
    (the least compute free, then the least memory; ties by row), so that large tasks still find nodes.
    """
    found, rows = _earliest_rows(market.node_slots(columns.start, columns.stop), demand, option.delay_slots)
    if not found:
        return None
    return describe(market, demand, option, placement_of(rows, market.first_slot + columns.start))


@kernel
def _earliest_rows(node_slots: NodeSlots, demand: Demand, first_slot: int) -> tuple[bool, Ints]:
    """Return whether the work is done in time, and the node rows or `NO_CHOICE`, (slots,)."""
    slots = node_slots.free_samples.shape[0]
    rows = np.full(slots, NO_CHOICE, np.int64)
    done = 0
    for slot in range(first_slot, slots):
        possible = 0
        for index in range(node_slots.class_bounds.size - 1):
            if demand.samples[index] <= possible:
                continue
            row = fullest_row(node_slots, demand, slot, index)
            if row != NO_CHOICE:
                possible, rows[slot] = demand.samples[index], row
        done += possible
        if done >= demand.work_samples:
            return True, rows
    return False, rows


class ExclusiveMarket(Market):
    """Market in which only empty node-slots have room. Every task takes some samples of each of its
    node-slots."""

    def node_slots(self, start: int, stop: int) -> NodeSlots:
        node_slots = super().node_slots(start, stop)
        empty = node_slots.free_samples == self.capacity_samples
        return node_slots._replace(free_samples=np.where(empty, node_slots.free_samples, 0.0))

    def has_room(self, placement: Placement, demand: Demand) -> bool:
        columns, rows, _ = self.locate(placement)
        empty = self.free_samples[columns, rows] == self.capacity_samples[rows]
        return bool(empty.all()) and super().has_room(placement, demand)
