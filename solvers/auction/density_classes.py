"""Sums over bids by their density, in few and fine classes.

A class is a range of density / first counted density, so results do not depend on the currency. Ratios and
classes are computed without a logarithm, which differs between machines.
"""

import math
from typing import Any

import numpy as np

from solvers.compiled import Bools, Floats, Ints, kernel

CLASSES_PER_OCTAVE = 32
A_CLASS_LOWER = 1 - 1 / CLASSES_PER_OCTAVE
"""Factor that lowers a density by one class or two."""
MOST_CLASSES = 512
"""Most classes, to bound the state: sixteen octaves without gaps. With more, two neighbours are merged."""
_ROUNDING = 1e-12
"""Relative tolerance. Losers are counted at the price level at which they lost, which is the edge of a class.
Rounding must put them on the same side of the edge in every currency."""
_MOST_PARTIALS = 40
"""Most partials: they do not overlap, and no more of 53 bits each fit into a double's 2,098 bits."""


class DensityClasses:
    """Sums for each non-empty class, from the highest class down."""

    def __init__(self, sums: int, units_sums: int) -> None:
        """
        Args:
            sums: number of sums.
            units_sums: the first `units_sums` sums are in units; the others derive from those.
        """
        self.reference: float | None = None
        self.sums: Floats = np.zeros((sums, 0))
        """Sums of each class, (sums, classes)."""
        self.densities: Floats = np.zeros(0)
        """Least density of each class, descending, (classes,)."""
        self._classes: Ints = np.zeros(0, np.int64)
        self._units_sums = units_sums

    @property
    def units(self) -> Floats:
        """All units of each class, (classes,)."""
        units: Floats = self.sums[: self._units_sums].sum(axis=0)
        return units

    def place(self, density: float) -> int:
        """Return the index of the class of a positive density; a missing class is added."""
        if self.reference is None:
            self.reference = density
        sought = class_of(density / self.reference * (1 + _ROUNDING))
        place = int((-self._classes).searchsorted(-sought))
        if place == len(self._classes) or self._classes[place] != sought:
            self._classes = np.insert(self._classes, place, sought)
            self.densities = np.insert(self.densities, place, self.reference * least_ratio_of(sought))
            self.sums = np.insert(self.sums, place, 0.0, axis=1)
        return place

    def limit_classes(self) -> None:
        """If there are too many classes, merge a class into the next lower one. So no offer counts higher
        than it was.

        The class with the least units times distance is merged. So small bids merge with each other,
        not with others.
        """
        if len(self._classes) > MOST_CLASSES:
            merged = int(np.argmin(self.units[:-1] * (self._classes[:-1] - self._classes[1:])))
            self.sums[:, merged + 1] += self.sums[:, merged]
            self.keep(np.arange(len(self._classes)) != merged)

    def keep(self, places: Bools) -> None:
        """Keep some classes only.

        Args:
            places: (classes,) whether to keep each class.
        """
        self._classes = self._classes[places]
        self.densities = self.densities[places]
        self.sums = np.ascontiguousarray(self.sums[:, places])

    def density_at(self, units_above: Floats, units: float) -> float:
        """Return the density of the first class at which the units above exceed `units`; 0 without one.

        Args:
            units_above: (classes,) units of the class and all higher ones.
        """
        place = int(units_above.searchsorted(units, "right"))
        return float(self.densities[place]) if place < len(units_above) else 0.0

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            "reference": self.reference,
            "classes": self._classes.tolist(),
            "sums": self.sums.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.reference = state["reference"]
        self._classes = np.array(state["classes"], np.int64)
        self.densities = np.array(
            [state["reference"] * least_ratio_of(number) for number in state["classes"]], float
        )
        self.sums = np.array(state["sums"], float)


def class_of(ratio: float, per_octave: int = CLASSES_PER_OCTAVE) -> int:
    """Return the class of a positive ratio, larger for larger ones: exact, since it needs no logarithm."""
    mantissa, exponent = math.frexp(ratio)
    return exponent * per_octave + int((2 * mantissa - 1) * per_octave)


def least_ratio_of(number: int, per_octave: int = CLASSES_PER_OCTAVE) -> float:
    """Return the least ratio of a class, by its number from `class_of`."""
    exponent, step = divmod(number, per_octave)
    return math.ldexp(1 + step / per_octave, exponent - 1)


@kernel
def exact_sum(values: Floats) -> float:
    """Return the sum of finite numbers, rounded once: the bits of `math.fsum`, in any order.

    It is the algorithm of J. R. Shewchuk, "Adaptive Precision Floating-Point Arithmetic and Fast Robust
    Geometric Predicates" (1997), with the rounding of Python's `math.fsum`.

    Args:
        values: one-dimensional; no partial sum may overflow.
    """
    partials = np.empty(_MOST_PARTIALS)
    count = 0
    for index in range(values.size):
        carried = values[index]
        kept = 0
        for place in range(count):
            other = partials[place]
            if abs(carried) < abs(other):
                carried, other = other, carried
            high = carried + other
            low = other - (high - carried)
            if low != 0.0:
                partials[kept] = low
                kept += 1
            carried = high
        partials[kept] = carried
        count = kept + 1
    if count == 0:
        return 0.0
    count -= 1
    total: float = partials[count]
    rest = 0.0
    while count > 0:
        count -= 1
        before = total
        total = before + partials[count]
        rest = partials[count] - (total - before)
        if rest != 0.0:
            break
    # Half a unit in the last place is rounded to even only if nothing lies beyond it.
    beyond = partials[count - 1] if count > 0 else 0.0
    if (rest < 0.0 and beyond < 0.0) or (rest > 0.0 and beyond > 0.0):
        twice = rest * 2.0
        rounded = total + twice
        if twice == rounded - total:
            total = rounded
    # The sum of negative zeros is zero, as the empty sum.
    return total + 0.0
