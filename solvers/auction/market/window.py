"""Part of a market that one task may use, the vendors that prepare its data, and the obstacles in it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from schemas.auction.bids import VendorQuoted
from schemas.lora import LoraWorkload
from solvers.auction.market.demand import Demand, UnplannableError
from solvers.auction.market.market import Market
from solvers.auction.market.node_slots import count_room, slots_until_done
from solvers.compiled import Floats, Ints


class VendorOption(NamedTuple):
    """Offer of a labour vendor for preparing the task's data, or none if the task needs none."""

    vendor: str | None
    price_micros: int
    """Price q_in."""
    delay_slots: int
    """Delay h_in, rounded up to slots."""


class Window(NamedTuple):
    """Slots of a task, from its arrival to its deadline, within the market's horizon."""

    columns: slice
    """Slots as columns of the market's arrays."""
    operational: Floats
    """Cost e_ikt of one slot of the task, in whole micros, (slots, classes)."""
    options: tuple[VendorOption, ...]
    """Vendors that no other undercuts in both price and delay and that leave time to train; by delay."""
    delays_slots: Ints
    """Delay of each option, (options,)."""
    prices_micros: Floats
    """Price of each option, (options,), in floating point: a price may exceed 64 bits."""

    @property
    def slots(self) -> int:
        return len(self.operational)

    @classmethod
    def of(
        cls, market: Market, demand: Demand, options: Sequence[VendorOption], first_slot: int, last_slot: int
    ) -> "Window | None":
        """Return the window of a task, or None if even an empty market could not do its work in time.

        Args:
            options: offers of vendors; one option without vendor for a task that needs none.
            first_slot, last_slot: absolute slots (a_i and d_i), both included.
        """
        return cls.within(market.first_slot, market.full_costs, demand, options, first_slot, last_slot)

    @classmethod
    def within(
        cls,
        base_slot: int,
        full_costs: Floats,
        demand: Demand,
        options: Sequence[VendorOption],
        first_slot: int,
        last_slot: int,
    ) -> "Window | None":
        """Return the window as `of` does, for any slots.

        Args:
            full_costs: (slots, classes) cost of a fully used node, in micros, from `base_slot` on.
        """
        first = max(first_slot - base_slot, 0)
        slots = min(last_slot - base_slot + 1, len(full_costs)) - first
        useful = tuple(option for option in undominated(options) if option.delay_slots < slots)
        if not useful or max(demand.samples.tolist()) * (slots - useful[0].delay_slots) < demand.work_samples:
            return None
        columns = slice(first, first + slots)
        return cls(
            columns=columns,
            operational=demand.operational(full_costs[columns]),
            options=useful,
            delays_slots=np.array([option.delay_slots for option in useful], np.int64),
            prices_micros=np.array([option.price_micros for option in useful], np.float64),
        )


def undominated(options: Iterable[VendorOption]) -> list[VendorOption]:
    """Return the options that no other undercuts in both price and delay, by delay; ties by vendor id."""
    kept: list[VendorOption] = []
    for option in sorted(options, key=lambda o: (o.delay_slots, o.price_micros, o.vendor or "")):
        if not kept or option.price_micros < kept[-1].price_micros:
            kept.append(option)
    return kept


Binding = Literal["time", "nodes", "compute", "memory", "none"]


class RoomCount(NamedTuple):
    """Node-slots of a task's window on classes that could run it, each counted once."""

    with_room: int
    node_closed: int
    without_compute: int
    without_memory: int

    @property
    def node_slots(self) -> int:
        return self.with_room + self.node_closed + self.without_compute + self.without_memory


def room_for(market: Market, demand: Demand, first_slot: int, last_slot: int) -> RoomCount:
    """Count the window's node-slots by the obstacle there."""
    first = min(max(first_slot - market.first_slot, 0), market.horizon_slots)
    stop = min(max(last_slot - market.first_slot + 1, first), market.horizon_slots)
    return RoomCount(*count_room(market.node_slots(first, stop), demand))


def binding(demand: Demand, room: RoomCount, slots: int, found: bool) -> Binding:
    """Return the first obstacle to a plan; `time` if even an empty zone could not meet the deadline."""
    if found:
        return "none"
    if max(demand.samples.tolist()) * max(slots, 0) < demand.work_samples:
        return "time"
    shortages: list[tuple[int, Binding]] = [
        (room.node_closed, "nodes"),
        (room.without_compute, "compute"),
        (room.without_memory, "memory"),
    ]
    most, name = max(shortages, key=lambda shortage: shortage[0])
    return name if most else "time"


def earliest_last_slot(market: Market, demand: Demand, options: Sequence[VendorOption]) -> int | None:
    """Return the earliest slot by which the work could be done in the present room, at any cost."""
    if not options:
        return None
    delay = min(option.delay_slots for option in options)
    if delay >= market.horizon_slots:
        return None
    slots = slots_until_done(market.node_slots(delay, market.horizon_slots), demand)
    return None if slots < 0 else market.first_slot + delay + slots - 1


def vendor_options(
    quotes: Mapping[str, VendorQuoted], workload: LoraWorkload, slot_s: float
) -> list[VendorOption]:
    """Return every vendor's price and delay for a task, by vendor; one option without vendor if it needs
    none.

    Raises:
        UnplannableError: the task needs pre-processing and no vendor quotes.
    """
    if not workload.needs_preprocessing:
        return [VendorOption(None, 0, 0)]
    if not quotes:
        raise UnplannableError("no_vendor")
    return [
        VendorOption(vendor, _price_micros(quote, workload), _delay_slots(quote, workload, slot_s))
        for vendor, quote in sorted(quotes.items())
    ]


def _price_micros(quote: VendorQuoted, workload: LoraWorkload) -> int:
    # Whole numbers only: the product may exceed the range of a float.
    return quote.fixed_price_micros - (
        -quote.price_per_thousand_samples_micros * workload.dataset.samples // 1_000
    )


def _delay_slots(quote: VendorQuoted, workload: LoraWorkload, slot_s: float) -> int:
    delay_s = quote.fixed_delay_s + quote.delay_per_thousand_samples_s * workload.dataset.samples / 1_000
    return math.ceil(delay_s / slot_s)
