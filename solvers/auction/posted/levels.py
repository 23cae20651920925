"""Two levels of price per unit of room, read off the demand curve and moved towards it in bounded steps.

The *base* is what room costs everywhere ahead: the density at which what is asked for per slot, over the span
ahead, just fits into what is still free there. This is the dual price of the re-solved fluid problem (S.
Jasin, S. Kumar, "A Re-Solving Heuristic with Bounded Revenue Loss for Network Revenue Management with
Customer Choice", 2012), and it follows the gap between use and room as dual mirror descent does (S. Balseiro,
H. Lu, V. Mirrokni, "The Best of Many Worlds", 2023). A part of what is free is kept for demand that
fluctuates, as a safety stock is: the larger, the fewer tasks the zone holds and the more their offers differ.
The *guard* is the density at which what is asked for would fit into a fifth of that room: what the last room
of a slot is kept for.

What is sold faster than a zone could be asked for all day raises both by the chance that it goes on.

The guard stays within a factor of the base, or of what operation costs. Both rise by no more than a factor
for the share of the span that is sold, and fall by no more than a part per slot. What awards that were
withdrawn had raised them by is taken back as well when the next slot begins, as far as no other demand holds
them up.
"""

import math
from dataclasses import dataclass
from typing import Self

from solvers.auction.posted.demand_curve import DemandCurve
from solvers.auction.posted.density_classes import A_CLASS_LOWER
from solvers.auction.posted.room import MOST_SUSTAINED, Ahead

_SPAN_WINDOWS = 2.2
"""The span ahead is so many times the mean window of what is sold: bids are planned over it."""
_UNHEARD = 0.2
"""Before bids of this part of the span were heard, demand is taken to be so much less than what was heard."""
_GOES_ON = 1 / 3
"""The chance that a burst goes on. Where it ends, nobody else comes for the room that prices kept."""
_BUSIEST = 5
"""The least stretch of the span ahead that may be busier than the rest of it is a fifth of the span, which
is nearly half of a mean window: a shorter one's tasks may run later."""
_MARGIN_DEVIATIONS = 3.0
"""Room for so many standard deviations of the sales that would fill the span is kept for demand that
fluctuates, where some offer far more than others: much of a zone that holds a few tasks at once, little of
one that holds hundreds. Where all offer alike nothing is kept, since what is sold later brings no more."""
_GUARD_ROOM = 0.2
LOW_PART = 15 / 16
"""What so large a part of the sold units offered or more is low: not the lowest, which a bid of next to
nothing could be."""
_RECENT = 0.1
"""Part of the span over which demand is averaged to find out that it has changed."""
_FASTEST_FALL = 0.5
_FALL_SLOTS = 5.0
"""Prices fall by e in about a fifth of the span."""
RISE_PER_SHARE = 139.0
"""A level at most doubles while a half per cent of the span's room is sold (ln 2 / 0.005)."""
_FIRST_STEP = 1 / 16
"""The least level above none: this part of what operation costs per unit."""
_FIRST_OFFER = 1 / 64
"""Likewise of a low offer among those that won, where operation costs nothing."""
_MOST_GUARD = 16.0
"""The guard is at most so many times the base. A few cheap bids of enormous amounts would otherwise make it
all that a full slot costs, and no usual bid could win and say what room is worth."""
_FIRST_GUARD = 1_024.0
"""Or so many times the least level: without a base, 64 times what operation costs."""


@dataclass
class Levels:
    """Of one zone, in micros per unit."""

    horizon_slots: int
    base: float = 0.0
    guard: float = 0.0

    def span_slots(self, curve: DemandCurve) -> int:
        """How far ahead prices look."""
        return min(self._wanted_span_slots(curve), self.horizon_slots)

    def busiest_slots(self, curve: DemandCurve) -> int:
        """Of how many slots the busiest stretch of the span is at least."""
        return min(-(-self._wanted_span_slots(curve) // _BUSIEST), self.horizon_slots)

    @property
    def lost_at(self) -> float:
        """Up to which density a bid that loses now is counted: no level that is read off it is higher."""
        return self.base / A_CLASS_LOWER

    def recent_slots(self, curve: DemandCurve) -> float:
        """Over how many slots a change of demand is looked for."""
        return max(_RECENT * self.span_slots(curve), 1.0)

    def fall(self, curve: DemandCurve) -> float:
        """By what part prices may fall in a slot."""
        return min(_FALL_SLOTS / (_FALL_SLOTS + self.span_slots(curve)), _FASTEST_FALL)

    def sink(self, kept: float) -> None:
        """Let the levels fall to a part of what they were."""
        self.base *= kept
        self.guard *= kept

    def rise(self, curve: DemandCurve, ahead: Ahead, sold_units: float, least: float) -> None:
        """Move the levels up to what the curve says.

        Args:
            sold_units: what was just sold.
            least: the level that they rise to at once.
        """
        wanted = self._wanted(curve, ahead)
        factor = 1.0 + RISE_PER_SHARE * sold_units / max(ahead.whole, 1.0)
        self.base = _risen(self.base, wanted.base, least, factor)
        most = max(_MOST_GUARD * self.base, _FIRST_GUARD * least)
        self.guard = _risen(self.guard, min(wanted.guard, most), least, factor)

    def undo(self, rise: "Rise", curve: DemandCurve, ahead: Ahead) -> float:
        """Take back a rise, but for what the curve asks for without it; returns to which part prices fall."""
        wanted = self._wanted(curve, ahead)
        base = max(self.base * rise.base_part, min(self.base, wanted.base))
        # Not below the base, which others may have raised since by more than the guard.
        guard = max(self.guard * rise.guard_part, min(self.guard, wanted.guard), base)
        parts = [now / before for now, before in ((base, self.base), (guard, self.guard)) if before > 0]
        self.base, self.guard = base, guard
        return max(parts, default=1.0)

    def _wanted_span_slots(self, curve: DemandCurve) -> int:
        """The span, were the horizon long enough."""
        window = curve.mean_window_slots
        return self.horizon_slots if window is None else max(int(_SPAN_WINDOWS * window), 1)

    def _part_that_goes_on(self, curve: DemandCurve, ahead: Ahead) -> float:
        """Of what was sold, the part that is expected to be asked for again as fast as it was.

        Losers are left out, or free bids could make a burst and lower prices.
        """
        room_per_slot = ahead.whole / self.span_slots(curve)
        sustained = MOST_SUSTAINED * room_per_slot * max(curve.slots, 1.0)
        sold = curve.sold_units
        return 1.0 if sold <= sustained else (sustained + _GOES_ON * (sold - sustained)) / sold

    def _wanted(self, curve: DemandCurve, ahead: Ahead) -> "Levels":
        expected = ahead.expected_slots
        fitting = max(ahead.free, 0.0) * (curve.slots + _UNHEARD * expected) / expected
        high = curve.density_at(_GUARD_ROOM * fitting)
        if high <= 0:
            return Levels(self.horizon_slots)
        low = max(curve.density_at(fitting), curve.sold_density(LOW_PART))
        spread = max(1.0 - low / high, 0.0)
        deviation = math.sqrt(curve.mean_sale_units / max(ahead.whole, 1.0))
        fitting /= 1.0 + _MARGIN_DEVIATIONS * spread * deviation
        # A class below, so that who offers just what they are read off can win: of those who offer alike as
        # many as there is room for.
        part = A_CLASS_LOWER * self._part_that_goes_on(curve, ahead)
        return Levels(
            self.horizon_slots,
            part * curve.density_at(fitting),
            part * curve.density_at(_GUARD_ROOM * fitting),
        )


@dataclass(frozen=True)
class Rise:
    """By what the levels rose: what they were, as a part of what they became; 0 from nothing."""

    base_part: float = 1.0
    guard_part: float = 1.0

    @classmethod
    def between(cls, before: Levels, after: Levels) -> Self:
        """From one state of the levels to a later one."""
        return cls(_part(before.base, after.base), _part(before.guard, after.guard))

    def times(self, other: "Rise") -> "Rise":
        """Both."""
        return Rise(self.base_part * other.base_part, self.guard_part * other.guard_part)


NO_RISE = Rise()


def least_level(operational_per_unit: float, low_offer: float) -> float:
    """Where levels begin to rise from; 0 where operation costs nothing and nothing was sold."""
    if operational_per_unit > 0:
        return _FIRST_STEP * operational_per_unit
    return _FIRST_OFFER * low_offer


def _risen(level: float, wanted: float, least: float, factor: float) -> float:
    return max(level, min(wanted, max(level, least) * factor))


def _part(before: float, after: float) -> float:
    return before / after if after > 0 else 1.0
