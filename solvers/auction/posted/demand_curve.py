"""How much room has lately been asked for at each price: what the price level is read off.

A bid offers so many micros per unit of room (see `units.py`). The curve holds, by that density, the units
asked for, in kinds that are trusted differently:

- *sold*: what winners offered. A win has its price, so raising the level by winning costs money.
- *unsold*: what losers offered, but for what they offered beyond the level that they lost at. A losing bid is
  free, so it must not raise a price; it may keep one from falling, as long as there are sales: unsold units
  count, and are remembered, up to `MOST_UNSOLD` times the sold ones.
- *away*: what those losers offered in full. It moves no price; plans leave room by it (`haste.py`).

Older bids fade. In steady times memory lasts for a horizon; when the units asked for per slot, at whatever
price, are far from what was asked for before, it fades within hours, so that a day unlike the last is found
out. Losers count there at most as much as winners do: twice as much is not far, so free bids alone make
nobody forget.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.auction.exact_sum import exact_sum
from solvers.auction.posted.density_classes import MOST_CLASSES, DensityClasses
from solvers.auction.posted.haste import haste_premium
from solvers.compiled import Floats, kernel

MOST_UNSOLD = 4.0
"""Units of losers count up to so many times those of winners."""
_MOST_AWAY = 1 / 32
"""Likewise of those who offered more than they lost at: enough to find out that near slots are wanted by
those who never get any."""
SURPRISE = 2.0
"""So many times more or less than remembered is far, and a standard deviation more: of few bids, twice as
many may be chance."""
_BUSY = 1 / 2
"""Slots that are expected to ask for less than this part of the mean tell nothing by asking for even less."""
_HASTE = 2.0
"""Then memory fades within so small a part of the time that was looked at."""
_FASTEST_FADING = 0.5
"""In a slot, of what is remembered."""
_FAINT = 1e-9
"""Part of all units below which a class is dropped."""

_SOLD, _UNSOLD, _LOST, _AWAY, _SOLD_WINDOWS, _AWAY_WINDOWS = range(6)
"""Sums of a class. Lost are units that became unsold since the last slot began, as what is lost moves no
price of its own slot. The last two are units sold and away, each times the slots in which it might have
run."""


class DemandCurve:
    """Of one zone. Densities are micros per unit, and whole classes of them."""

    def __init__(self, memory_slots: int) -> None:
        self._memory_slots = memory_slots
        self._classes = DensityClasses(sums=6, units_sums=4)
        self._read: _Reading | None = None
        """Of the classes as they are."""
        self.slots = 0.0
        """Of how many slots the bids are that are remembered: older ones count less, and each as much as it
        was expected to ask for."""
        self._squared_units = 0.0
        """Sum of the squares of the units of each sale."""
        self._fresh_sold = 0.0
        self._fresh_lost = 0.0
        """What was asked for since the last slot began, at any price: by winners, and by losers."""
        self._asked_units = 0.0
        """What was asked for before at any price, as far as it is remembered."""
        self._recent_units = 0.0
        """Mean of what was asked for per slot, over the last few."""
        self._recent_expected = 0.0
        """Mean of what these slots were expected to ask for, as parts of what slots do on average."""
        self._recent_weight = 0.0

    @property
    def reference(self) -> float | None:
        """The density that classes are counted from; None before anything was."""
        return self._classes.reference

    @property
    def sold_units(self) -> float:
        """What is remembered of what was sold at a price."""
        return self._reading.sold_units

    @property
    def mean_window_slots(self) -> float | None:
        """In how many slots what was sold might have run, on average; None before anything was."""
        return self._reading.mean_window_slots

    @property
    def mean_sale_units(self) -> float:
        """Units of the sale that a sold unit was part of, on average; 0 before anything was sold."""
        sold_units = self.sold_units
        return self._squared_units / sold_units if sold_units > 0 else 0.0

    @property
    def units_per_slot(self) -> float:
        """What was asked for lately, at any price, by losers at most as much as by winners."""
        return self._recent_units / self._recent_weight if self._recent_weight else 0.0

    @property
    def forgets_after_slots(self) -> int:
        """If more slots than that pass at once, nothing is remembered."""
        return 4 * self._memory_slots

    def asked_units(self, most_lost_units: float) -> float:
        """What was asked for since the last slot began, at any price: by losers at most so much."""
        return self._fresh_sold + min(self._fresh_lost, most_lost_units)

    def sell(self, density: float, units: float, window_slots: int) -> None:
        """Count a winner."""
        self._fresh_sold += units
        if density > 0:
            self._count(density, {_SOLD: units, _SOLD_WINDOWS: units * window_slots})
            self._read = None
            self._squared_units += units * units

    def lose(self, density: float, units: float) -> None:
        """Count a loser; its density is at most the level that it lost at."""
        self._fresh_lost += units
        if density > 0:
            self._count(density, {_LOST: units})

    def turn_away(self, density: float, units: float, window_slots: int) -> None:
        """Count what a loser has offered, if it is more than it lost at: nothing but plans depends on it."""
        self._count(density, {_AWAY: units, _AWAY_WINDOWS: units * window_slots})

    def take_back(self, density: float, units: float, window_slots: int, age_slots: int) -> None:
        """Undo a sale of so many slots ago, as far as it is remembered at the usual pace."""
        if age_slots == 0:
            self._fresh_sold = max(self._fresh_sold - units, 0.0)
        if density <= 0:
            return
        place = self._classes.place(density)
        sums = self._classes.sums
        if MOST_CLASSES < sums.shape[1] > place + 1:
            # Its class is new, so the one that it was sold in was merged with the next lower one.
            place += 1
        left = min(units * power(1 - 1 / self._memory_slots, age_slots), float(sums[_SOLD, place]))
        sums[_SOLD, place] -= left
        sums[_SOLD_WINDOWS, place] = max(sums[_SOLD_WINDOWS, place] - left * window_slots, 0.0)
        self._squared_units = max(self._squared_units - left * units, 0.0)
        self._classes.merge_least()
        self._read = None

    def lower_losers(self, density: float) -> None:
        """Count losers at no more than a density: they lost at a level that nobody answers for any more."""
        if self.reference is None:
            return
        place = self._classes.place(density) if density > 0 else None
        unsold = self._classes.sums[_UNSOLD]
        units = _sum(unsold[:place])
        unsold[:place] = 0.0
        if place is not None:
            unsold[place] += units
        self._classes.merge_least()
        self._read = None

    def advance(self, expected: Floats, recent_slots: float) -> None:
        """Let slots pass.

        Args:
            expected: (slots,) what each was expected to ask for, as a part of what slots do on average.
            recent_slots: over how many, about, what was asked for lately is averaged.
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
        # What does not count is not remembered either: as it fades, it would count in place of what was lost
        # since, the longer the more it was.
        sums[_UNSOLD] *= self._counted_part(_UNSOLD, MOST_UNSOLD)
        sums[[_AWAY, _AWAY_WINDOWS]] *= self._counted_part(_AWAY, _MOST_AWAY)
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
        """The density of the first unit, from the highest down, for which so many units have no room; 0 where
        all have."""
        return self._classes.density_at(self._reading.asked_above, units)

    def sold_density(self, part: float) -> float:
        """What so large a part of the sold units offered or more."""
        sold = self._reading.sold_above
        return self._classes.density_at(sold, part * float(sold[-1])) if sold.size else 0.0

    def haste_premium(self, typical: float) -> float:
        """What the last room of a slot is worth to those who offer much and cannot wait: see `haste.py`."""
        return _haste_premium(self._classes.densities, self._classes.sums, typical)

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            **self._classes.state(),
            "slots": self.slots,
            "squared_units": self._squared_units,
            "fresh": [self._fresh_sold, self._fresh_lost],
            "recent": [self._asked_units, self._recent_units, self._recent_expected, self._recent_weight],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another."""
        self._classes.restore(state)
        self.slots = state["slots"]
        self._squared_units = state["squared_units"]
        self._fresh_sold, self._fresh_lost = state["fresh"]
        self._asked_units, self._recent_units, self._recent_expected, self._recent_weight = state["recent"]
        self._read = None

    @property
    def _reading(self) -> "_Reading":
        # What is lost changes none of it, unless there are other classes since.
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
        """Of a sum of losers' units, of which at most so many times those sold count."""
        return _counted_part(self._classes.sums, losers, most)

    def _count(self, density: float, units: dict[int, float]) -> None:
        place = self._classes.place(density)
        for row, more in units.items():
            self._classes.sums[row, place] += more
        self._classes.merge_least()

    def _forget(self, kept: float) -> None:
        self._classes.sums *= kept
        self._squared_units *= kept
        units = self._classes.units
        self._classes.keep(units > _FAINT * _sum(units))
        self._read = None


@dataclass(frozen=True)
class _Reading:
    """What is read off the classes as they are."""

    densities: Floats
    """Of the classes, the very array."""
    sold_units: float
    mean_window_slots: float | None
    sold_above: Floats
    """(classes,) units sold at a class or above."""
    asked_above: Floats
    """(classes,) likewise, with what counts of those unsold."""


@kernel
def _counted_part(sums: Floats, losers: int, most: float) -> float:
    units = exact_sum(sums[losers])
    return min(1.0, most * exact_sum(sums[_SOLD]) / units) if units > 0 else 1.0


@kernel
def _read(sums: Floats) -> tuple[float, float, Floats, Floats]:
    """Units sold, those times the slots in which they might have run, and (classes,) units sold and asked for
    at each class or above."""
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
def _haste_premium(densities: Floats, sums: Floats, typical: float) -> float:
    part = _counted_part(sums, _AWAY, _MOST_AWAY)
    units = sums[_SOLD] + part * sums[_AWAY]
    windows = sums[_SOLD_WINDOWS] + part * sums[_AWAY_WINDOWS]
    return haste_premium(densities, units, windows, typical)


@kernel
def _passed(
    expected: Floats,
    memory_slots: int,
    recent_slots: float,
    sale_units: float,
    remembered_slots: float,
    asked_units: float,
    fresh_units: float,
    recent_units: float,
    recent_expected: float,
    recent_weight: float,
) -> tuple[float, float, float, float, float, float]:
    """Lets slots pass, the first of which asked for the fresh units and the others for none: which part of
    the bids is still remembered, and the last five arguments but the fresh units."""
    kept = 1.0
    for slot in range(expected.size):
        recent_units += (fresh_units - recent_units) / recent_slots
        recent_expected += (expected[slot] - recent_expected) / recent_slots
        recent_weight += (1 - recent_weight) / recent_slots
        fading = 1 / memory_slots
        usual = asked_units / remembered_slots if remembered_slots > recent_slots else 0.0
        usual *= recent_expected / recent_weight
        if usual > 0:
            far = SURPRISE + math.sqrt(sale_units / (usual * recent_slots))
            lately = recent_units / recent_weight
            is_busy = min(expected[slot], recent_expected / recent_weight) >= _BUSY
            if (is_busy and lately < usual / far) or lately > usual * far:
                fading = max(fading, min(_HASTE / recent_slots, _FASTEST_FADING))
        remembered_slots = remembered_slots * (1 - fading) + expected[slot]
        asked_units = asked_units * (1 - fading) + fresh_units
        fresh_units = 0.0
        kept *= 1 - fading
    return kept, remembered_slots, asked_units, recent_units, recent_expected, recent_weight


def power(base: float, exponent: int) -> float:
    """By multiplication alone: the library's own power differs from machine to machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _sum(values: Floats) -> float:
    # numpy's own sum depends on the machine's vector width.
    return exact_sum(np.ascontiguousarray(values))
