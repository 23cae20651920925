"""Sums over bids by the density that they offered, in classes that are fine and of which there are few.

A class holds the densities between two ratios to a reference, the first density that was ever counted: so no
unit of money is special. Ratios and classes are found without a logarithm, which differs between machines.
"""

import math
from typing import Any

import numpy as np

from solvers.compiled import Bools, Floats, Ints

CLASSES_PER_OCTAVE = 32
A_CLASS_LOWER = 1 - 1 / CLASSES_PER_OCTAVE
"""Times this a density is a class lower, or two."""
MOST_CLASSES = 512
"""Sixteen octaves, if none is left out. Of more, two neighbours are counted as one: a state has bounds."""
_ROUNDING = 1e-12
"""Relative. Losers are counted at the level, which is the edge of a class: rounding must not put them below
it in one money and not in another."""


class DensityClasses:
    """Several sums for each class that something was counted in, from the highest class down."""

    def __init__(self, sums: int, units_sums: int) -> None:
        """
        Args:
            sums: how many there are.
            units_sums: how many of them, the first ones, are units; the others follow from those.
        """
        self.reference: float | None = None
        self.sums: Floats = np.zeros((sums, 0))
        """(sums, classes)."""
        self.densities: Floats = np.zeros(0)
        """(classes,) the least of each class, descending."""
        self._classes: Ints = np.zeros(0, np.int64)
        self._units_sums = units_sums

    @property
    def units(self) -> Floats:
        """(classes,) all units of each class."""
        units: Floats = self.sums[: self._units_sums].sum(axis=0)
        return units

    def place(self, density: float) -> int:
        """The index of the class of a positive density, which is made if there is none."""
        if self.reference is None:
            self.reference = density
        wanted = class_of(density / self.reference * (1 + _ROUNDING))
        place = int((-self._classes).searchsorted(-wanted))
        if place == len(self._classes) or self._classes[place] != wanted:
            self._classes = np.insert(self._classes, place, wanted)
            self.densities = np.insert(self.densities, place, self.reference * least_ratio_of(wanted))
            self.sums = np.insert(self.sums, place, 0.0, axis=1)
        return place

    def merge_least(self) -> None:
        """Of more classes than are told apart, count one as the next lower, and so never higher than what was
        offered: the one whose units, times the classes between, are least. So many small bids at all kinds of
        prices merge with each other, and leave alone what others offer."""
        if len(self._classes) > MOST_CLASSES:
            merged = int(np.argmin(self.units[:-1] * (self._classes[:-1] - self._classes[1:])))
            self.sums[:, merged + 1] += self.sums[:, merged]
            self.keep(np.arange(len(self._classes)) != merged)

    def keep(self, places: Bools) -> None:
        """Drop all other classes."""
        self._classes = self._classes[places]
        self.densities = self.densities[places]
        self.sums = np.ascontiguousarray(self.sums[:, places])

    def density_at(self, units_above: Floats, units: float) -> float:
        """The density of the first class down to which there are more units than so many; 0 if in none.

        Args:
            units_above: (classes,) units of the class and all above it.
        """
        place = int(units_above.searchsorted(units, "right"))
        return float(self.densities[place]) if place < len(units_above) else 0.0

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "reference": self.reference,
            "classes": self._classes.tolist(),
            "sums": self.sums.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another."""
        self.reference = state["reference"]
        self._classes = np.array(state["classes"], np.int64)
        self.densities = np.array(
            [state["reference"] * least_ratio_of(place) for place in state["classes"]], float
        )
        self.sums = np.array(state["sums"], float)


def class_of(ratio: float) -> int:
    """The class of a positive ratio, larger for larger ones: exact, as it takes no logarithm."""
    mantissa, exponent = math.frexp(ratio)
    return exponent * CLASSES_PER_OCTAVE + int((2 * mantissa - 1) * CLASSES_PER_OCTAVE)


def least_ratio_of(place: int) -> float:
    """The least ratio of a class."""
    exponent, step = divmod(place, CLASSES_PER_OCTAVE)
    return math.ldexp(1 + step / CLASSES_PER_OCTAVE, exponent - 1)
