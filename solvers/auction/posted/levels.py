"""Two levels of price per unit of room, computed from the demand curve and moved towards it in bounded steps.

The *base* is the price of room everywhere ahead: the density at which the demand per slot, over the span
ahead, just fits into the free room there. This is the dual price of the re-solved fluid problem (S. Jasin, S.
Kumar, "A Re-Solving Heuristic with Bounded Revenue Loss for Network Revenue Management with Customer Choice",
2012), and it follows the gap between use and room as dual mirror descent does (S. Balseiro, H. Lu, V.
Mirrokni, "The Best of Many Worlds", 2023). A part of the free room is a safety stock for fluctuating demand:
it is larger, the fewer tasks the zone holds and the more their offers differ. The *guard* is the density at
which the demand would fit into a fifth of that room: the last room of a slot is kept for it.

If sales are faster than a zone can have them all day, both levels rise by the chance that the sales continue.

The guard stays within a factor of the base, or of the operational cost. A rise of both is limited to a
factor, which grows with the share of the span that is sold; a fall is limited to a part per slot. A rise by a
withdrawn award is undone when the next slot begins, unless other demand supports it.
"""

import math
from dataclasses import dataclass
from typing import Self

from solvers.auction.density_classes import A_CLASS_LOWER
from solvers.auction.posted.constants import (
    BUSIEST_DIVISOR,
    CONTINUATION_CHANCE,
    FALL_SLOTS,
    FASTEST_FALL,
    FIRST_GUARD,
    FIRST_OFFER,
    FIRST_STEP,
    GUARD_ROOM_PART,
    LOW_OFFER_PART,
    MARGIN_DEVIATIONS,
    MOST_GUARD,
    MOST_SUSTAINED,
    RECENT_PART,
    RISE_PER_SHARE,
    SPAN_WINDOWS,
    UNOBSERVED_PART,
)
from solvers.auction.posted.demand_curve import DemandCurve
from solvers.auction.posted.room import Ahead


@dataclass
class Levels:
    """Levels of one zone, in micros per unit."""

    horizon_slots: int
    base: float = 0.0
    guard: float = 0.0

    def span_slots(self, curve: DemandCurve) -> int:
        """Return the span ahead that prices consider."""
        return min(self._unbounded_span_slots(curve), self.horizon_slots)

    def busiest_slots(self, curve: DemandCurve) -> int:
        """Return the least length of the busiest stretch of the span."""
        return min(-(-self._unbounded_span_slots(curve) // BUSIEST_DIVISOR), self.horizon_slots)

    @property
    def lost_at(self) -> float:
        """Density to which a losing bid is clipped: no level computed from it is higher."""
        return self.base / A_CLASS_LOWER

    def recent_slots(self, curve: DemandCurve) -> float:
        """Return the number of slots over which a change of demand is detected."""
        return max(RECENT_PART * self.span_slots(curve), 1.0)

    def fall(self, curve: DemandCurve) -> float:
        """Return the part by which prices may fall in a slot."""
        return min(FALL_SLOTS / (FALL_SLOTS + self.span_slots(curve)), FASTEST_FALL)

    def lower(self, kept: float) -> None:
        """Lower the levels to a part of their values."""
        self.base *= kept
        self.guard *= kept

    def rise(self, curve: DemandCurve, ahead: Ahead, sold_units: float, least: float) -> None:
        """Raise the levels towards those of the curve.

        Args:
            sold_units: units just sold.
            least: level to which they rise at once.
        """
        target = self._target(curve, ahead)
        factor = 1.0 + RISE_PER_SHARE * sold_units / max(ahead.whole, 1.0)
        self.base = _risen(self.base, target.base, least, factor)
        most = max(MOST_GUARD * self.base, FIRST_GUARD * least)
        self.guard = _risen(self.guard, min(target.guard, most), least, factor)

    def undo(self, rise: "Rise", curve: DemandCurve, ahead: Ahead) -> float:
        """Undo a rise, down to the levels of the curve, and return the part to which prices fall."""
        target = self._target(curve, ahead)
        base = max(self.base * rise.base_part, min(self.base, target.base))
        # Not below the base, which other bids may have raised by more than the guard since.
        guard = max(self.guard * rise.guard_part, min(self.guard, target.guard), base)
        parts = [now / before for now, before in ((base, self.base), (guard, self.guard)) if before > 0]
        self.base, self.guard = base, guard
        return max(parts, default=1.0)

    def _unbounded_span_slots(self, curve: DemandCurve) -> int:
        """Return the span for an unlimited horizon."""
        window = curve.mean_window_slots
        return self.horizon_slots if window is None else max(int(SPAN_WINDOWS * window), 1)

    def _continuing_part(self, curve: DemandCurve, ahead: Ahead) -> float:
        """Return the part of the sales for which equal demand is expected to continue.

        Losers are left out: otherwise free bids could make a burst and lower prices.
        """
        room_per_slot = ahead.whole / self.span_slots(curve)
        sustained = MOST_SUSTAINED * room_per_slot * max(curve.slots, 1.0)
        sold = curve.sold_units
        return 1.0 if sold <= sustained else (sustained + CONTINUATION_CHANCE * (sold - sustained)) / sold

    def _target(self, curve: DemandCurve, ahead: Ahead) -> "Levels":
        expected = ahead.expected_slots
        fitting = max(ahead.free, 0.0) * (curve.slots + UNOBSERVED_PART * expected) / expected
        high = curve.density_at(GUARD_ROOM_PART * fitting)
        if high <= 0:
            return Levels(self.horizon_slots)
        low = max(curve.density_at(fitting), curve.sold_density(LOW_OFFER_PART))
        spread = max(1.0 - low / high, 0.0)
        deviation = math.sqrt(curve.mean_sale_units / max(ahead.whole, 1.0))
        fitting /= 1.0 + MARGIN_DEVIATIONS * spread * deviation
        # A class lower, so that bids at the density of the level can win. Of equal bids, as many win as there
        # is room for.
        part = A_CLASS_LOWER * self._continuing_part(curve, ahead)
        return Levels(
            self.horizon_slots,
            part * curve.density_at(fitting),
            part * curve.density_at(GUARD_ROOM_PART * fitting),
        )


@dataclass(frozen=True)
class Rise:
    """Rise of the levels: former levels as parts of the new ones; 0 for a rise from 0."""

    base_part: float = 1.0
    guard_part: float = 1.0

    @classmethod
    def between(cls, before: Levels, after: Levels) -> Self:
        """Return the rise from one state of the levels to a later one."""
        return cls(_part(before.base, after.base), _part(before.guard, after.guard))

    def times(self, other: "Rise") -> "Rise":
        """Return the combination of both rises."""
        return Rise(self.base_part * other.base_part, self.guard_part * other.guard_part)


NO_RISE = Rise()


def least_level(operational_per_unit: float, low_offer: float) -> float:
    """Return the level from which rises start; 0 if operation costs nothing and nothing was sold."""
    if operational_per_unit > 0:
        return FIRST_STEP * operational_per_unit
    return FIRST_OFFER * low_offer


def _risen(level: float, target: float, least: float, factor: float) -> float:
    return max(level, min(target, max(level, least) * factor))


def _part(before: float, after: float) -> float:
    return before / after if after > 0 else 1.0
