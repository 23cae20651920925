"""How much room has lately been asked for at each price: what the price level is read off.

A bid offers so many micros per unit of room (see `units.py`). The curve holds, by that density, the units
asked for, in two kinds that are trusted differently:

- *sold*: what winners offered. A win has its price, so raising the level by winning costs money.
- *unsold*: what losers offered, but for what they offered beyond the level that they lost at. A losing bid is
  free, so it must not raise a price; it may keep one from falling, as long as there are sales: unsold units
  count, and are remembered, up to `MOST_UNSOLD` times the sold ones.

Older bids fade. In steady times memory lasts for a horizon; when the units asked for per slot, at whatever
price, are far from what was asked for before, it fades within hours, so that a day unlike the last is found
out. Losers count there at most as much as winners do: twice as much is not far, so free bids alone make
nobody forget.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.auction.posted.haste import haste_premium
from solvers.compiled import Floats, Ints, kernel

CLASSES_PER_OCTAVE = 32
"""Densities are counted in classes this fine, from a density of the zone's own: so no unit of money is
special."""
A_CLASS_LOWER = 1 - 1 / CLASSES_PER_OCTAVE
"""Times this a density is a class lower, or two."""
MOST_UNSOLD = 4.0
_MOST_AWAY = 1 / 32
"""Likewise of those who offered more than they lost at: enough to find out that near slots are wanted by
those who never get any."""
MOST_CLASSES = 512
"""Sixteen octaves, if none is left out. Of more, two neighbours are counted as one: a state has bounds."""
SURPRISE = 2.0
"""So many times more or less than remembered is far, and a standard deviation more: of few bids, twice as
many may be chance."""
_BUSY = 1 / 2
"""Slots that are expected to ask for less than this part of the mean tell nothing by asking for even less."""
_HASTE = 2.0
"""Then memory fades within so small a part of the time that was looked at."""
_FASTEST_FADING = 0.5
"""In a slot, of what is remembered."""
_ROUNDING = 1e-12
"""Relative. Losers are counted at the level, which is the edge of a class: rounding must not put them below
it in one money and not in another."""
_FAINT = 1e-9
"""Part of all units below which a class is dropped."""


class DemandCurve:
    """Of one zone. Densities are micros per unit, and whole classes of them."""

    def __init__(self, memory_slots: int) -> None:
        self._memory_slots = memory_slots
        self.reference: float | None = None
        """The density that classes are counted from: the first one ever counted."""
        self._classes: Ints = np.zeros(0, np.int64)
        """Descending."""
        self._sold: Floats = np.zeros(0)
        self._unsold: Floats = np.zeros(0)
        self._lost: Floats = np.zeros(0)
        """Unsold since the last slot began: what is lost moves no price of its own slot."""
        self._windows: Floats = np.zeros(0)
        """The sold units, each times the slots in which it might have run."""
        self._away: Floats = np.zeros(0)
        """Units of losers who offered more than they lost at, by what they offered."""
        self._away_windows: Floats = np.zeros(0)
        """The same, each times the slots in which it might have run."""
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
        self._rate: tuple[Floats, Floats] | None = None

    @property
    def mean_window_slots(self) -> float | None:
        """In how many slots what was sold might have run, on average; None before anything was."""
        sold = float(_sum(self._sold))
        return _sum(self._windows) / sold if sold > 0 else None

    @property
    def mean_sale_units(self) -> float:
        """Units of the sale that a sold unit was part of, on average; 0 before anything was sold."""
        sold = float(_sum(self._sold))
        return self._squared_units / sold if sold > 0 else 0.0

    @property
    def units_per_slot(self) -> float:
        """What was asked for lately, at any price, by losers at most as much as by winners."""
        return self._recent_units / self._recent_weight if self._recent_weight else 0.0

    @property
    def forgets_after_slots(self) -> int:
        """If more slots than that pass at once, nothing is remembered."""
        return 4 * self._memory_slots

    @property
    def fresh_units(self) -> float:
        """What was asked for since the last slot began, at any price: by losers at most as much as by
        winners."""
        return self._fresh_sold + min(self._fresh_lost, self._fresh_sold)

    def sell(self, density: float, units: float, window_slots: int) -> None:
        """Count a winner."""
        self._fresh_sold += units
        if density > 0:
            place = self._place(density)
            self._sold[place] += units
            self._windows[place] += units * window_slots
            self._squared_units += units * units
            self._rate = None
            self._merge_least()

    def lose(self, density: float, units: float) -> None:
        """Count a loser; its density is at most the level that it lost at."""
        self._fresh_lost += units
        if density > 0:
            place = self._place(density)
            self._lost[place] += units
            self._merge_least()

    def turn_away(self, density: float, units: float, window_slots: int) -> None:
        """Count what a loser has offered, if it is more than it lost at: nothing but plans depends on it."""
        place = self._place(density)
        self._away[place] += units
        self._away_windows[place] += units * window_slots
        self._merge_least()

    def take_back(self, density: float, units: float, window_slots: int, age_slots: int) -> None:
        """Undo a sale of so many slots ago, as far as it is remembered at the usual pace."""
        if age_slots == 0:
            self._fresh_sold = max(self._fresh_sold - units, 0.0)
        if density <= 0:
            return
        place = self._place(density)
        if MOST_CLASSES < len(self._classes) > place + 1:
            # Its class is new, so the one that it was sold in was merged with the next lower one.
            place += 1
        left = min(units * power(1 - 1 / self._memory_slots, age_slots), float(self._sold[place]))
        self._sold[place] -= left
        self._windows[place] = max(self._windows[place] - left * window_slots, 0.0)
        self._squared_units = max(self._squared_units - left * units, 0.0)
        self._rate = None
        self._merge_least()

    def lower_losers(self, density: float) -> None:
        """Count losers at no more than a density: they lost at a level that nobody answers for any more."""
        if self.reference is None:
            return
        place = self._place(density) if density > 0 else len(self._classes)
        units = _sum(self._unsold[:place])
        self._unsold[:place] = 0.0
        if density > 0:
            self._unsold[place] += units
        self._rate = None
        self._merge_least()

    def advance(self, expected: Floats, recent_slots: float) -> None:
        """Let slots pass.

        Args:
            expected: (slots,) what each was expected to ask for, as a part of what slots do on average.
            recent_slots: over how many, about, what was asked for lately is averaged.
        """
        if expected.size > self.forgets_after_slots:
            self._lost[:] = 0.0
            self._forget(0.0)
            self.slots, self._asked_units = 0.0, 0.0
            self._fresh_sold, self._fresh_lost = 0.0, 0.0
            self._recent_units, self._recent_expected, self._recent_weight = 0.0, 0.0, 0.0
            return
        self._unsold += self._lost
        self._lost[:] = 0.0
        # What does not count is not remembered either: as it fades, it would count in place of what was lost
        # since, the longer the more it was.
        self._unsold *= self._counted_part()
        turned_away = self._turned_away_part()
        self._away *= turned_away
        self._away_windows *= turned_away
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
            self.fresh_units,
            self._recent_units,
            self._recent_expected,
            self._recent_weight,
        )
        self._fresh_sold, self._fresh_lost = 0.0, 0.0
        self._forget(kept)

    def density_at(self, units: float) -> float:
        """The density of the first unit, from the highest down, for which so many units have no room; 0 where
        all have."""
        if self._rate is None:
            self._rate = (
                np.cumsum(self._sold + self._counted_part() * self._unsold),
                np.cumsum(self._sold),
            )
        return self._at(self._rate[0], units)

    def sold_density(self, part: float) -> float:
        """What so large a part of the sold units offered or more."""
        self.density_at(0.0)
        assert self._rate is not None
        sold = self._rate[1]
        return self._at(sold, part * float(sold[-1])) if sold.size else 0.0

    def haste_premium(self, typical: float) -> float:
        """What the last room of a slot is worth to those who offer much and cannot wait: see `haste.py`."""
        if self.reference is None:
            return 0.0
        exponents, steps = np.divmod(self._classes, CLASSES_PER_OCTAVE)
        densities = self.reference * np.ldexp(1 + steps / CLASSES_PER_OCTAVE, exponents - 1)
        part = self._turned_away_part()
        units, windows = self._sold + part * self._away, self._windows + part * self._away_windows
        return haste_premium(densities, units, windows, typical)

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "reference": self.reference,
            "classes": self._classes.tolist(),
            "sold": self._sold.tolist(),
            "unsold": self._unsold.tolist(),
            "slots": self.slots,
            "windows": self._windows.tolist(),
            "away": self._away.tolist(),
            "away_windows": self._away_windows.tolist(),
            "squared_units": self._squared_units,
            "lost": self._lost.tolist(),
            "fresh": [self._fresh_sold, self._fresh_lost],
            "recent": [self._asked_units, self._recent_units, self._recent_expected, self._recent_weight],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another."""
        self.reference = state["reference"]
        self._classes = np.array(state["classes"], np.int64)
        self._sold, self._unsold, self._lost = (
            np.array(state[name], float) for name in ("sold", "unsold", "lost")
        )
        self._windows, self._away, self._away_windows = (
            np.array(state[name], float) for name in ("windows", "away", "away_windows")
        )
        self.slots = state["slots"]
        self._squared_units = state["squared_units"]
        self._fresh_sold, self._fresh_lost = state["fresh"]
        self._asked_units, self._recent_units, self._recent_expected, self._recent_weight = state["recent"]
        self._rate = None

    def _counted_part(self) -> float:
        """Of the unsold units."""
        return _part_of(MOST_UNSOLD * _sum(self._sold), _sum(self._unsold))

    def _turned_away_part(self) -> float:
        """Of the units of those who offered more than they lost at."""
        return _part_of(_MOST_AWAY * _sum(self._sold), _sum(self._away))

    @property
    def _by_class(self) -> tuple[Floats, ...]:
        return self._sold, self._unsold, self._lost, self._windows, self._away, self._away_windows

    def _at(self, units_above: Floats, units: float) -> float:
        place = int(np.searchsorted(units_above, units, side="right"))
        if place >= len(units_above) or self.reference is None:
            return 0.0
        return self.reference * least_ratio_of(int(self._classes[place]))

    def _place(self, density: float) -> int:
        if self.reference is None:
            self.reference = density
        wanted = class_of(density / self.reference * (1 + _ROUNDING))
        place = int(np.searchsorted(-self._classes, -wanted))
        if place == len(self._classes) or self._classes[place] != wanted:
            self._classes = np.insert(self._classes, place, wanted)
            (self._sold, self._unsold, self._lost, self._windows, self._away, self._away_windows) = (
                np.insert(of_classes, place, 0.0) for of_classes in self._by_class
            )
            self._rate = None
        return place

    def _merge_least(self) -> None:
        """Of more classes than are told apart, count one as the next lower, and so never higher than what was
        offered: the one whose units, times the classes between, are least. So many small bids at all kinds of
        prices merge with each other, and leave alone what others offer."""
        if len(self._classes) > MOST_CLASSES:
            units = self._sold + self._unsold + self._lost + self._away
            merged = int(np.argmin(units[:-1] * (self._classes[:-1] - self._classes[1:])))
            for of_classes in self._by_class:
                of_classes[merged + 1] += of_classes[merged]
            self._keep(np.arange(len(self._classes)) != merged)
            self._rate = None

    def _forget(self, kept: float) -> None:
        self._sold *= kept
        self._unsold *= kept
        self._windows *= kept
        self._away *= kept
        self._away_windows *= kept
        self._squared_units *= kept
        units = self._sold + self._unsold + self._away
        self._keep(units > _FAINT * _sum(units))
        self._rate = None

    def _keep(self, places: npt.NDArray[np.bool_]) -> None:
        self._classes = self._classes[places]
        (self._sold, self._unsold, self._lost, self._windows, self._away, self._away_windows) = (
            of_classes[places] for of_classes in self._by_class
        )


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


def class_of(ratio: float) -> int:
    """The class of a positive ratio, larger for larger ones: exact, as it takes no logarithm."""
    mantissa, exponent = math.frexp(ratio)
    return exponent * CLASSES_PER_OCTAVE + int((2 * mantissa - 1) * CLASSES_PER_OCTAVE)


def least_ratio_of(place: int) -> float:
    """The least ratio of a class."""
    exponent, step = divmod(place, CLASSES_PER_OCTAVE)
    return math.ldexp(1 + step / CLASSES_PER_OCTAVE, exponent - 1)


def power(base: float, exponent: int) -> float:
    """By multiplication alone: the library's own power differs from machine to machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _part_of(most: float, units: float) -> float:
    """Of units, of which at most so many count."""
    return min(1.0, most / units) if units > 0 else 1.0


def _sum(values: Floats) -> float:
    # numpy's own sum depends on the machine's vector width.
    return math.fsum(values.tolist())
