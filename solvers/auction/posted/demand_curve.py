"""Recent demand for room by price, from which price levels are computed.

A bid offers an amount of micros per unit of room (see `room.py`), its density. The curve holds the demanded
units by density, in kinds of different weight:

- *sold*: offers of winners. A win has its price, so raising the level by winning costs money.
- *unsold*: offers of losers, clipped to the level at which they lost. A losing bid is free, so it must not
  raise a price. It may keep a level from falling while there are sales. Unsold units count, and are kept, up
  to `MOST_UNSOLD` times the sold units.
- *away*: full offers of those losers. They move no price; plans leave room for them (`haste_premium`).

Older bids fade. With steady demand, memory lasts for a horizon. If the demand per slot, at any price, differs
strongly from before, it fades within hours, so that a changed day is detected. For this, losers count at most
as much as winners. Twice the demand is no strong difference, so free bids alone do not shorten the memory.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.auction.density_classes import MOST_CLASSES, DensityClasses, exact_sum
from solvers.auction.posted.constants import (
    BUSY_PART,
    FADING_DIVISOR,
    FAINT_PART,
    FASTEST_FADING,
    FORGOTTEN_AFTER,
    HIGH_OFFER,
    MOST_AWAY,
    MOST_PREMIUM,
    MOST_UNSOLD,
    RARE_PART,
    SHORT_WINDOW_PART,
    SURPRISE,
)
from solvers.compiled import Floats, kernel

_ROUNDING = 1e-12
"""Largest relative rounding error of a sum from which a sale is taken back."""
_SOLD, _UNSOLD, _LOST, _AWAY, _SOLD_WINDOWS, _AWAY_WINDOWS = range(6)
"""Sums of a class. Lost units became unsold since the last slot began; they move no price of that slot. The
last two are sold and away units, each times the slots in which it might have run."""


class DemandCurve:
    """Demand curve of one zone. Densities are micros per unit, in whole classes."""

    def __init__(self, memory_slots: int) -> None:
        self._memory_slots = memory_slots
        self._classes = DensityClasses(sums=6, units_sums=4)
        self._read: _Reading | None = None
        """Cached reading of the present classes."""
        self.slots = 0.0
        """Number of slots of the remembered bids; older slots count less, and each by its expected demand."""
        self._squared_units = 0.0
        """Sum of the squares of the units of each sale."""
        self._large_units = 0.0
        """Sum of the units of each sale, times the share of a node that its task takes, if it is large."""
        self._packed_units = 0.0
        """Sum of the units of each sale, times the part of a node that tasks of its size can take."""
        self._fresh_sold = 0.0
        self._fresh_lost = 0.0
        """Demand since the last slot began, at any price: of winners, and of losers."""
        self._asked_units = 0.0
        """Remembered demand before, at any price."""
        self._recent_units = 0.0
        """Mean demand per slot, over the last few."""
        self._recent_expected = 0.0
        """Mean expected demand of these slots, as parts of the mean of all slots."""
        self._recent_weight = 0.0

    @property
    def reference(self) -> float | None:
        """Density that classes are relative to; None before the first bid."""
        return self._classes.reference

    @property
    def sold_units(self) -> float:
        """Remembered units sold at a price."""
        return self._reading.sold_units

    @property
    def mean_window_slots(self) -> float | None:
        """Mean number of slots in which sold units might have run; None before the first sale."""
        return self._reading.mean_window_slots

    @property
    def mean_sale_units(self) -> float:
        """Mean size of the sale that a sold unit was part of; 0 before the first sale."""
        sold_units = self.sold_units
        return self._squared_units / sold_units if sold_units > 0 else 0.0

    @property
    def large_share(self) -> float:
        """Share of a node that the task of a sold unit takes, in the mean, with 0 for tasks of at most half
        of a node; 0 before the first sale."""
        sold_units = self.sold_units
        return min(self._large_units / sold_units, 1.0) if sold_units > 0 else 0.0

    @property
    def packed_part(self) -> float:
        """Part of a node that tasks of the size of a sold unit's can take, in the mean, at least a half; 1
        before the first sale."""
        sold_units = self.sold_units
        return min(max(self._packed_units / sold_units, 1 / 2), 1.0) if sold_units > 0 else 1.0

    @property
    def units_per_slot(self) -> float:
        """Recent demand per slot at any price, with losers counted at most as much as winners."""
        return self._recent_units / self._recent_weight if self._recent_weight else 0.0

    @property
    def forgets_after_slots(self) -> int:
        """Number of slots after which nothing is remembered, if they pass at once."""
        return FORGOTTEN_AFTER * self._memory_slots

    def asked_units(self, most_lost_units: float) -> float:
        """Return the demand since the last slot began, at any price, with at most so much of losers."""
        return self._fresh_sold + min(self._fresh_lost, most_lost_units)

    def sell(self, density: float, units: float, window_slots: int, share: float = 0.0) -> None:
        """Count a winner, whose task takes a share of a node."""
        self._fresh_sold += units
        if density > 0:
            self._count(density, {_SOLD: units, _SOLD_WINDOWS: units * window_slots})
            self._read = None
            self._squared_units += units * units
            self._large_units += units * large(share)
            self._packed_units += units * (large(share) or 1.0)

    def lose(self, density: float, units: float) -> None:
        """Count a loser; its density is at most the level at which it lost."""
        self._fresh_lost += units
        if density > 0:
            self._count(density, {_LOST: units})

    def count_full_offer(self, density: float, units: float, window_slots: int) -> None:
        """Count the full offer of a loser above the level at which it lost: only plans depend on it."""
        self._count(density, {_AWAY: units, _AWAY_WINDOWS: units * window_slots})

    def remove(
        self, density: float, units: float, window_slots: int, age_slots: int, share: float = 0.0
    ) -> None:
        """Undo the part of an earlier sale that still counts, at the usual rate of fading."""
        if age_slots == 0:
            self._fresh_sold = max(self._fresh_sold - units, 0.0)
        if density <= 0:
            return
        place = self._classes.place(density)
        sums = self._classes.sums
        if MOST_CLASSES < sums.shape[1] > place + 1:
            # A missing class was merged with the next lower one since the sale.
            place += 1
        sold = float(sums[_SOLD, place])
        left = min(units * power(1 - 1 / self._memory_slots, age_slots), sold)
        sums[_SOLD, place] -= left
        sums[_SOLD_WINDOWS, place] = max(sums[_SOLD_WINDOWS, place] - left * window_slots, 0.0)
        if sums[_SOLD, place] <= _ROUNDING * sold:
            # The rest is a rounding error, by which nothing may be divided.
            sums[_SOLD, place] = sums[_SOLD_WINDOWS, place] = 0.0
        self._squared_units = max(self._squared_units - left * units, 0.0)
        self._large_units = max(self._large_units - left * large(share), 0.0)
        self._packed_units = max(self._packed_units - left * (large(share) or 1.0), 0.0)
        self._classes.limit_classes()
        self._read = None

    def lower_losers(self, density: float) -> None:
        """Clip the density of losers: the bids that raised the level at which they lost are withdrawn."""
        if self.reference is None:
            return
        place = self._classes.place(density) if density > 0 else None
        unsold = self._classes.sums[_UNSOLD]
        units = _sum(unsold[:place])
        unsold[:place] = 0.0
        if place is not None:
            unsold[place] += units
        self._classes.limit_classes()
        self._read = None

    def advance(self, expected: Floats, recent_slots: float) -> None:
        """Advance by slots.

        Args:
            expected: (slots,) expected demand of each slot, as a part of the mean.
            recent_slots: approximate number of slots over which recent demand is averaged.
        """
        sums = self._classes.sums
        if expected.size > self.forgets_after_slots:
            sums[_LOST] = 0.0
            self._forget(0.0)
            self.slots, self._asked_units = 0.0, 0.0
            self._fresh_sold, self._fresh_lost = 0.0, 0.0
            self._recent_units, self._recent_expected, self._recent_weight = 0.0, 0.0, 0.0
            return
        sums[_UNSOLD] += sums[_LOST]
        sums[_LOST] = 0.0
        # Units that do not count are dropped: otherwise, as sales fade, they would count in place of later
        # losers.
        sums[_UNSOLD] *= self._counted_part(_UNSOLD, MOST_UNSOLD)
        sums[[_AWAY, _AWAY_WINDOWS]] *= self._counted_part(_AWAY, MOST_AWAY)
        (
            kept,
            self.slots,
            self._asked_units,
            self._recent_units,
            self._recent_expected,
            self._recent_weight,
        ) = _passed(
            expected,
            self._memory_slots,
            recent_slots,
            self.mean_sale_units,
            self.slots,
            self._asked_units,
            self.asked_units(self._fresh_sold),
            self._recent_units,
            self._recent_expected,
            self._recent_weight,
        )
        self._fresh_sold, self._fresh_lost = 0.0, 0.0
        self._forget(kept)

    def density_at(self, units: float) -> float:
        """Return the density of the first unit, from the highest down, beyond so many; 0 if all fit."""
        return self._classes.density_at(self._reading.asked_above, units)

    def sold_density(self, part: float) -> float:
        """Return the density that a given part of the sold units offered or exceeded."""
        sold = self._reading.sold_above
        return self._classes.density_at(sold, part * float(sold[-1])) if sold.size else 0.0

    def haste_premium(self, typical: float) -> float:
        """See the function `haste_premium`."""
        return _haste_premium(self._classes.densities, self._classes.sums, typical)

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            **self._classes.state(),
            "slots": self.slots,
            "squared_units": self._squared_units,
            "large": [self._large_units, self._packed_units],
            "fresh": [self._fresh_sold, self._fresh_lost],
            "recent": [self._asked_units, self._recent_units, self._recent_expected, self._recent_weight],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._classes.restore(state)
        self.slots = state["slots"]
        self._squared_units = state["squared_units"]
        self._large_units, self._packed_units = state["large"]
        self._fresh_sold, self._fresh_lost = state["fresh"]
        self._asked_units, self._recent_units, self._recent_expected, self._recent_weight = state["recent"]
        self._read = None

    @property
    def _reading(self) -> "_Reading":
        # Losses do not change it, unless there are new classes.
        if self._read is None or self._read.densities is not self._classes.densities:
            sold, windows, sold_above, asked_above = _read(self._classes.sums)
            self._read = _Reading(
                densities=self._classes.densities,
                sold_units=sold,
                mean_window_slots=windows / sold if sold > 0 else None,
                sold_above=sold_above,
                asked_above=asked_above,
            )
        return self._read

    def _counted_part(self, losers: int, most: float) -> float:
        """Return the part of losers' units that counts: at most a multiple of the sold ones."""
        return _counted_part(self._classes.sums, losers, most)

    def _count(self, density: float, units: dict[int, float]) -> None:
        place = self._classes.place(density)
        for row, more in units.items():
            self._classes.sums[row, place] += more
        self._classes.limit_classes()

    def _forget(self, kept: float) -> None:
        self._classes.sums *= kept
        self._squared_units *= kept
        self._large_units *= kept
        self._packed_units *= kept
        units = self._classes.units
        self._classes.keep(units > FAINT_PART * _sum(units))
        self._read = None


@dataclass(frozen=True)
class _Reading:
    """Values computed from the present classes."""

    densities: Floats
    """Densities of the classes, as the same array object."""
    sold_units: float
    mean_window_slots: float | None
    sold_above: Floats
    """Units sold at a class or above, (classes,)."""
    asked_above: Floats
    """Units demanded at a class or above: sold ones and counted unsold ones, (classes,)."""


@kernel
def _counted_part(sums: Floats, losers: int, most: float) -> float:
    units = exact_sum(sums[losers])
    return min(1.0, most * exact_sum(sums[_SOLD]) / units) if units > 0 else 1.0


@kernel
def _read(sums: Floats) -> tuple[float, float, Floats, Floats]:
    """Return the units sold, their sum times the slots in which they might have run, and the units sold and
    demanded at each class or above, (classes,) each."""
    part = _counted_part(sums, _UNSOLD, MOST_UNSOLD)
    classes = sums.shape[1]
    sold_above, asked_above = np.empty(classes), np.empty(classes)
    sold, asked = 0.0, 0.0
    for place in range(classes):
        sold += sums[_SOLD, place]
        asked += sums[_SOLD, place] + part * sums[_UNSOLD, place]
        sold_above[place], asked_above[place] = sold, asked
    return exact_sum(sums[_SOLD]), exact_sum(sums[_SOLD_WINDOWS]), sold_above, asked_above


@kernel
def haste_premium(densities: Floats, units: Floats, windows: Floats, typical: float) -> float:
    """Return the value of a unit of the last room of a slot beyond a high offer, in micros, for tasks in
    haste.

    A task that can wait may use any slot of a long window; one that cannot must find room in the next few. If
    high offers are of the second kind, a plan for the first should leave some room in near slots. This is a
    smooth form of the protection levels of K. Littlewood, "Forecasting and Control of Passenger Bookings"
    (1972), for room that is sold first to tasks that can wait. If high offers have as much time as all
    others, near slots are best filled, since their unsold room is soon lost.

    Each demanded unit is weighted by its excess over the least high offer, in the means of the excess and of
    the window.

    Args:
        densities: (classes,) offers, in micros per unit.
        units: (classes,) sold units, and counted units of losers.
        windows: (classes,) sum over the units of the slots in which each might have run.
        typical: density of most room.
    """
    offered = offered_squared = offered_windows = all_units = all_windows = 0.0
    for place in range(densities.size):
        excess = min(max(densities[place] - HIGH_OFFER * typical, 0.0), MOST_PREMIUM * typical)
        offered += units[place] * excess
        offered_squared += units[place] * excess * excess
        offered_windows += windows[place] * excess
        all_units += units[place]
        all_windows += windows[place]
    if offered <= 0 or all_windows <= 0:
        return 0.0
    window_part = offered_windows / offered * all_units / all_windows
    haste = max(1.0 - window_part / SHORT_WINDOW_PART, 0.0)
    return haste * min(offered_squared / offered, offered / all_units / RARE_PART)


@kernel
def _haste_premium(densities: Floats, sums: Floats, typical: float) -> float:
    part = _counted_part(sums, _AWAY, MOST_AWAY)
    units = sums[_SOLD] + part * sums[_AWAY]
    windows = sums[_SOLD_WINDOWS] + part * sums[_AWAY_WINDOWS]
    return haste_premium(densities, units, windows, typical)


@kernel
def _passed(
    expected: Floats,
    memory_slots: int,
    recent_slots: float,
    sale_units: float,
    slots_in_memory: float,
    asked_units: float,
    fresh_units: float,
    recent_units: float,
    recent_expected: float,
    recent_weight: float,
) -> tuple[float, float, float, float, float, float]:
    """Advance by slots, the first of which had the demand `fresh_units`.

    Returns:
        The part of the bids that still counts, and the new values of `slots_in_memory`,
        `asked_units`, `recent_units`, `recent_expected` and `recent_weight`.
    """
    kept = 1.0
    for slot in range(expected.size):
        recent_units += (fresh_units - recent_units) / recent_slots
        recent_expected += (expected[slot] - recent_expected) / recent_slots
        recent_weight += (1 - recent_weight) / recent_slots
        fading = 1 / memory_slots
        usual = asked_units / slots_in_memory if slots_in_memory > recent_slots else 0.0
        usual *= recent_expected / recent_weight
        if usual > 0:
            far = SURPRISE + math.sqrt(sale_units / (usual * recent_slots))
            lately = recent_units / recent_weight
            is_busy = min(expected[slot], recent_expected / recent_weight) >= BUSY_PART
            if (is_busy and lately < usual / far) or lately > usual * far:
                fading = max(fading, min(FADING_DIVISOR / recent_slots, FASTEST_FADING))
        slots_in_memory = slots_in_memory * (1 - fading) + expected[slot]
        asked_units = asked_units * (1 - fading) + fresh_units
        fresh_units = 0.0
        kept *= 1 - fading
    return kept, slots_in_memory, asked_units, recent_units, recent_expected, recent_weight


def large(share: float) -> float:
    """Return the share of a node if it is more than a half, else 0.

    A larger task leaves room that no other like it can take. What smaller ones leave is filled by others.
    """
    return share if share > 1 / 2 else 0.0


def power(base: float, exponent: int) -> float:
    """Return a power by multiplication only: the power function of libraries differs between machines."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _sum(values: Floats) -> float:
    # The sum of numpy depends on the machine's vector width.
    return exact_sum(np.ascontiguousarray(values))
