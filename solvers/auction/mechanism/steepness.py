"""Steepness of prices, learned from earlier winners instead of a declared bound on bids (erratum P4).

By Eqs. 7 and 8, a node-slot that is taken share by share, at a mean b-bar, ends (e - 1) alpha b-bar above e
times its opening price. alpha and beta are chosen so that four fifths of the winners offered this price or
more. If prices rose less, a node-slot would fill with bids worth less than later ones without room; if they
rose more, it would stay half empty. Losing bids are ignored, since they cost nothing and could be arbitrary.
No bid affects its own price, since a winner counts only for later bids. If node-slots open at zero, the first
bid wins and winners reveal nothing, so the declared bounds are used.
"""

import math
from collections import Counter
from typing import Any

from solvers.auction.mechanism.mechanism import PriceRises

_REACHED_PART = 0.8
"""Part of the winners, from the highest offer down, whose least offer prices reach."""
_LEAST_AWARDS = 20
"""Least awards; with fewer, the declared bounds are used."""
_LEAST_STEEPNESS = 0.05
"""Least alpha and beta: even with high opening prices, a taken node-slot stays dearer than an empty one."""
_STEPS_PER_OCTAVE = 8
"""Resolution of the classes of offers: whole numbers only, so equal on every machine."""


class LearnedSteepness:
    """Offers of a zone's winners per node-slot, and their welfare density."""

    def __init__(self, declared: PriceRises, memory_slots: int) -> None:
        """Make an empty record.

        Args:
            declared: parameters until there are enough awards.
            memory_slots: half-life of counted offers.
        """
        self._declared = declared
        self._memory_slots = memory_slots
        self._halved_slot = 0
        self._offers: Counter[int] = Counter()
        self._awards = 0.0
        self._award_micros = 0.0
        """Sum of the winners' b-bar."""
        self._opening_micros = 0.0
        """Sum of the opening prices of the winners' node-slots, per node-slot."""

    def rises(self) -> PriceRises:
        """Return the parameters of the rise of prices with the next award."""
        if self._awards < _LEAST_AWARDS or self._award_micros <= 0 or self._opening_micros <= 0:
            return self._declared
        missing_micros = self._reached_offer_micros() - math.e * self._opening_micros / self._awards
        steepness = max(missing_micros / ((math.e - 1) * self._award_micros / self._awards), _LEAST_STEEPNESS)
        return PriceRises(steepness, steepness, self._declared.max_density_micros)

    def count_award(self, offer_micros: float, density_micros: float, opening_micros: float) -> None:
        """Count a winner.

        Args:
            offer_micros: its bid less its vendor's price, per node-slot on the class that needs the fewest.
            density_micros: its b-bar.
            opening_micros: mean price of its node-slots when they were empty.
        """
        self._offers[_class_of(min(offer_micros, self._declared.max_density_micros))] += 1
        self._awards += 1
        self._award_micros += density_micros
        self._opening_micros += opening_micros

    def advance(self, slot: int) -> None:
        """Let older offers fade as slots pass."""
        halvings = (slot - self._halved_slot) // self._memory_slots
        if halvings <= 0:
            return
        self._halved_slot += halvings * self._memory_slots
        self._offers = Counter({place: n >> halvings for place, n in self._offers.items() if n >> halvings})
        self._awards = math.ldexp(self._awards, -halvings)
        self._award_micros = math.ldexp(self._award_micros, -halvings)
        self._opening_micros = math.ldexp(self._opening_micros, -halvings)

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            "halved_slot": self._halved_slot,
            "offers": sorted(self._offers.items()),
            "awards": [self._awards, self._award_micros, self._opening_micros],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._halved_slot = state["halved_slot"]
        self._offers = Counter(dict(state["offers"]))
        self._awards, self._award_micros, self._opening_micros = state["awards"]

    def _reached_offer_micros(self) -> float:
        """Return the least offer of the part of the winners with the highest offers."""
        left = self._offers.total() * _REACHED_PART
        for place in sorted(self._offers, reverse=True):
            left -= self._offers[place]
            if left <= 0:
                return _least_of(place)
        return 0.0


def _class_of(micros: float) -> int:
    """Return the class of an amount, larger for larger ones; 0 for less than a micro."""
    whole = int(max(micros, 0.0))
    octave = whole.bit_length() - 1
    return 0 if octave < 0 else octave * _STEPS_PER_OCTAVE + (whole * _STEPS_PER_OCTAVE >> octave)


def _least_of(place: int) -> float:
    """Return the least amount of a class."""
    if place == 0:
        return 0.0
    octave, step = divmod(place - _STEPS_PER_OCTAVE, _STEPS_PER_OCTAVE)
    return math.ldexp(_STEPS_PER_OCTAVE + step, octave) / _STEPS_PER_OCTAVE
