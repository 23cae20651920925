"""The part of a market that one task may use, with what both searches over it need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.arrays import Floats, Ints
from solvers.auction.demand import Demand
from solvers.auction.market import Market


@dataclass(frozen=True)
class VendorOption:
    """What a labour vendor asks for preparing the task's data; `vendor` is None where none is needed."""

    vendor: str | None
    price_micros: int
    """q_in."""
    delay_slots: int
    """h_in, rounded up to slots."""


@dataclass(frozen=True)
class Window:
    """A task's slots, from its arrival to its deadline and within the market's horizon."""

    columns: slice
    """The slots, as columns of the market's arrays."""
    operational: Floats
    """(slots, classes) e_ikt of one slot of the task, in whole micros."""
    options: tuple[VendorOption, ...]
    """Vendors that no other undercuts in both price and delay and that leave time to train; by delay."""
    delays_slots: Ints
    """(options,)"""
    prices_micros: Floats
    """(options,) in floating point: a price may have no bound that 64 bits hold."""

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self.operational)

    @classmethod
    def of(
        cls, market: Market, demand: Demand, options: Sequence[VendorOption], first_slot: int, last_slot: int
    ) -> "Window | None":
        """The window of a task, or None where even an empty market could not do its work in time.

        Args:
            options: what vendors ask; one option without vendor for a task that needs none.
            first_slot, last_slot: absolute slots (a_i and d_i), both included.
        """
        return cls.within(
            market.first_slot, demand.operational(market.full_costs), demand, options, first_slot, last_slot
        )

    @classmethod
    def within(
        cls,
        base_slot: int,
        operational: Floats,
        demand: Demand,
        options: Sequence[VendorOption],
        first_slot: int,
        last_slot: int,
    ) -> "Window | None":
        """As `of`, for whatever slots there are: `operational` is over them, from `base_slot` on."""
        first = max(first_slot - base_slot, 0)
        slots = min(last_slot - base_slot + 1, len(operational)) - first
        useful = tuple(option for option in undominated(options) if option.delay_slots < slots)
        if not useful or int(demand.samples.max()) * (slots - useful[0].delay_slots) < demand.work_samples:
            return None
        columns = slice(first, first + slots)
        return cls(
            columns=columns,
            operational=operational[columns],
            options=useful,
            delays_slots=np.array([option.delay_slots for option in useful], np.int64),
            prices_micros=np.array([option.price_micros for option in useful], np.float64),
        )


def undominated(options: Iterable[VendorOption]) -> list[VendorOption]:
    """The options that no other undercuts in both price and delay, by delay; ties by vendor id."""
    kept: list[VendorOption] = []
    for option in sorted(options, key=lambda o: (o.delay_slots, o.price_micros, o.vendor or "")):
        if not kept or option.price_micros < kept[-1].price_micros:
            kept.append(option)
    return kept
