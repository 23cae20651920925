"""Certificate of posted prices: the best dual point with one constant price per unit of room.

Any prices make a point of the dual D_1 (Eq. 6) once mu_i covers constraint 6a (erratum P8), whatever was
charged. At a constant price g per unit, no plan of bid i costs less than `a_i + g u_i`, where a_i is the
least cost of vendor and operation, and u_i the least units of a plan (`room.py`). So

    sum of max(0, b_i - a_i - g u_i) + g x units of all node-slots that a bid could use

bounds the welfare of every schedule. The sum depends on bids only by their density (b_i - a_i) / u_i: with
the bids counted in classes of density, the best g is found without reading a bid again.

Three such points are kept, and the least value counts: with the price on compute, on memory, and half on
each. One price for all time would be a loose bound after a week. So time is divided into *periods* of a
horizon, each with a price for the bids that arrived in it. A node-slot that bids of two periods could use
costs the higher of both prices.

The welfare of each admitted plan is at most its part of the bound (docs/auction/certificate.md). A plan l of
bid i has welfare b_i - q - e <= b_i - a_i <= mu_i + g u_i, and takes at least u_i units. All plans together
take at most the capacity, if released room that may be used again counts again.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from solvers.auction.density_classes import MOST_CLASSES, class_of, least_ratio_of

COMPUTE_PARTS = (1.0, 0.5, 0.0)
"""Part of compute in the price of a unit, for each of the points; the rest is on memory."""
_ROUNDING = 1e-9
"""Relative bound on the rounding error of floating-point sums."""


@dataclass
class _Class:
    """Bids of similar density."""

    net_micros: int = 0
    units: float = 0.0


@dataclass
class _Point:
    """Dual point."""

    compute_part: float
    settled_micros: int = 0
    """Value of bids of earlier periods, and of node-slots before the present one."""
    price: float = 0.0
    """Price per unit for the bids of the present period."""
    gain_micros: int = 0
    """Sum of mu_i of the bids of the present period at this price."""
    price_before: float = 0.0
    """Price of the previous period, whose bids could use node-slots of this one; the highest of several."""
    settled_price: float = 0.0
    """Price at which the bids of the previous period were settled."""
    classes: defaultdict[int, _Class] = field(default_factory=lambda: defaultdict(_Class))
    """Sums by class of density, relative to `reference`."""
    reference: float | None = None
    halvings: int = 0
    """Number of times that neighbouring classes were merged because there were too many."""

    def units(self, compute: float, memory: float) -> float:
        return self.compute_part * compute + (1 - self.compute_part) * memory

    def remove(self, net_micros: int, units: float) -> None:
        """Remove a bid of the present period."""
        held = self.class_at(net_micros / units)
        held.net_micros -= net_micros
        held.units -= units
        self.gain_micros -= _least_gain_micros(net_micros, units, self.price)

    def remove_settled(self, net_micros: int, units: float) -> None:
        """Remove a bid of the previous period, whose price stays."""
        self.settled_micros -= _least_gain_micros(net_micros, units, self.settled_price)

    def class_at(self, density: float) -> _Class:
        if self.reference is None:
            self.reference = density
        place = class_of(density / self.reference)
        held = self.classes[place >> self.halvings]
        while len(self.classes) > MOST_CLASSES:
            self._halve()
            held = self.classes[place >> self.halvings]
        return held

    def least_density_of(self, place: int) -> float:
        """Return the least density of a class."""
        assert self.reference is not None
        return self.reference * least_ratio_of(place << self.halvings)

    def clear(self) -> None:
        """Remove all bids."""
        self.classes.clear()
        self.halvings = 0

    def _halve(self) -> None:
        """Merge neighbouring classes, which doubles the gaps between tried prices and leaves no bid out.
        Classes without bids are dropped."""
        finer = self.classes
        self.classes = defaultdict(_Class)
        self.halvings += 1
        for place, held in finer.items():
            if held.net_micros > 0:
                merged = self.classes[place >> 1]
                merged.net_micros += held.net_micros
                merged.units += held.units


class ConstantPrices:
    """See `bound_micros`."""

    def __init__(self, first_slot: int, period_slots: int) -> None:
        """Start the first period.

        Args:
            period_slots: at least the horizon, so that no bid reaches beyond the next period.
        """
        self._points = [_Point(part) for part in COMPUTE_PARTS]
        self._period_slots = period_slots
        self._period_first_slot = first_slot
        self._settled_first_slot = first_slot
        """Start of the previous period."""
        self._first_own_slot = first_slot
        """First slot whose bids were all counted here."""
        self._open: list[list[float]] = []
        """Units of compute and of memory that a bid could use, of each slot from the period's first on."""
        self._opened_before = 0
        """Number of these slots that bids of the previous period could use."""
        self._shared = [0.0, 0.0]
        """Units in the slots that bids of the previous period could use too."""
        self._own = [0.0, 0.0]

    @property
    def bound_micros(self) -> int:
        """Least value of the points, rounded up."""
        return min(
            point.settled_micros + point.gain_micros + self._room_micros(point, point.price)
            for point in self._points
        )

    def open(self, first_slot: int, last_slot: int, units_per_slot: float) -> None:
        """Count the node-slots between these two slots, which a bid could use.

        Args:
            first_slot: no less than with earlier bids. Earlier slots that no bid could use are not counted.
        """
        idle = max(first_slot - self._period_first_slot - len(self._open), 0)
        opened = last_slot + 1 - self._period_first_slot - len(self._open) - idle
        if opened > 0:
            self._open += [[0.0, 0.0] for _ in range(idle)]
            self._open += [[units_per_slot, units_per_slot] for _ in range(opened)]
            self._own = [units + opened * units_per_slot for units in self._own]

    def add_earlier_bound(self, micros: int, first_slot: int) -> None:
        """Add a bound for earlier bids that were counted elsewhere: no schedule of all bids has more welfare
        than one of the earlier and one of the later bids.

        Args:
            micros: bound of the earlier bids.
            first_slot: first slot whose bids are counted here. Bids of that slot may also have been counted
                elsewhere, so no bid of that slot is removed.
        """
        self.settle(micros)
        self._first_own_slot = first_slot + 1

    def settle(self, micros: int) -> None:
        """Add an amount, positive or negative, to the bound of bids that were counted elsewhere."""
        for point in self._points:
            point.settled_micros += micros

    def add_room_ahead(self, first_slot: int, compute_units: float, memory_units: float) -> None:
        """Add room to this slot and to all later ones that a bid could use."""
        for slot in range(first_slot, self._period_first_slot + len(self._open)):
            self.add_room(slot, compute_units, memory_units)

    def add_room(self, slot: int, compute_units: float, memory_units: float) -> None:
        """Add the room of released node-slots to a slot."""
        place = slot - self._period_first_slot
        if 0 <= place < len(self._open):
            for room in (self._open[place], self._shared if place < self._opened_before else self._own):
                room[0] += compute_units
                room[1] += memory_units

    def count_bid(self, net_micros: int, compute_units: float, memory_units: float) -> None:
        if net_micros > 0:
            for point in self._points:
                units = point.units(compute_units, memory_units)
                held = point.class_at(net_micros / units)
                held.net_micros += net_micros
                held.units += units
                point.gain_micros += _gain_micros(net_micros, units, point.price)

    def remove(self, net_micros: int, compute_units: float, memory_units: float, slot: int) -> None:
        """Remove a withdrawn bid of this period or of the previous one.

        An earlier bid stays, which leaves the bound valid: it has no plan left, unless its job was postponed.
        """
        if net_micros <= 0 or slot < max(self._settled_first_slot, self._first_own_slot):
            return
        for point in self._points:
            units = point.units(compute_units, memory_units)
            if slot < self._period_first_slot:
                point.remove_settled(net_micros, units)
            else:
                point.remove(net_micros, units)

    def advance(self, first_slot: int) -> None:
        """Choose the best prices again, and begin a new period if the present one has ended."""
        for point in self._points:
            self._improve(point)
        if first_slot < self._period_first_slot + self._period_slots:
            return
        passed = min(first_slot - self._period_first_slot, len(self._open))
        over, still_shared = self._open[:passed], self._opened_before > passed
        shared = _sums(over[: self._opened_before])
        own = _sums(over[self._opened_before :])
        for point in self._points:
            point.settled_micros += point.gain_micros + _room_micros(point, shared, own, point.price)
            point.price_before = max(point.price, point.price_before) if still_shared else point.price
            point.settled_price = point.price
            point.clear()
            point.gain_micros = 0
        self._open = self._open[passed:]
        self._opened_before = len(self._open)
        self._shared, self._own = _sums(self._open), [0.0, 0.0]
        self._settled_first_slot, self._period_first_slot = self._period_first_slot, first_slot

    def state(self) -> dict[str, Any]:
        """Return the mutable state, in types that msgpack writes."""
        return {
            "points": [
                [
                    # Amounts may exceed 64 bits over the years, so they are written as text.
                    str(point.settled_micros),
                    point.price,
                    str(point.gain_micros),
                    point.price_before,
                    point.settled_price,
                    [[place, str(held.net_micros), held.units] for place, held in point.classes.items()],
                    point.reference,
                    point.halvings,
                ]
                for point in self._points
            ],
            "period_first_slot": self._period_first_slot,
            "settled_first_slot": self._settled_first_slot,
            "first_own_slot": self._first_own_slot,
            "open": self._open,
            "opened_before": self._opened_before,
            "room": [self._shared, self._own],
        }

    def restore(self, state: dict[str, Any]) -> None:
        for point, of_point in zip(self._points, state["points"], strict=True):
            settled, price, gain, before, settled_price, classes, reference, halvings = of_point
            point.settled_micros, point.price, point.gain_micros = int(settled), price, int(gain)
            point.price_before, point.settled_price, point.reference = before, settled_price, reference
            point.clear()
            for place, net, units in classes:
                point.classes[place] = _Class(int(net), units)
            point.halvings = halvings
        self._period_first_slot = state["period_first_slot"]
        self._settled_first_slot = state["settled_first_slot"]
        self._first_own_slot = state["first_own_slot"]
        self._open = [list(units) for units in state["open"]]
        self._opened_before = state["opened_before"]
        self._shared, self._own = (list(units) for units in state["room"])

    def _improve(self, point: _Point) -> None:
        """Choose the price of least value for the bids of the period: 0 or the least density of a class."""
        best_price = 0.0
        best_gain = sum(held.net_micros for held in point.classes.values())
        best = best_gain + self._room_micros(point, 0.0)
        net, units = 0, 0.0
        for place in sorted(point.classes, reverse=True):
            held = point.classes[place]
            net += held.net_micros
            units += held.units
            price = point.least_density_of(place)
            gain = _gain_micros(net, units, price)
            value = gain + self._room_micros(point, price)
            if value < best:
                best, best_price, best_gain = value, price, gain
        point.price, point.gain_micros = best_price, best_gain

    def _room_micros(self, point: _Point, price: float) -> int:
        return _room_micros(point, self._shared, self._own, price)


def _gain_micros(net_micros: int, units: float, price: float) -> int:
    """Return an upper bound on the gain of bids at a price. Amounts are whole numbers. If an absurdly large
    amount is withdrawn, nothing of it may remain, and floating point would lose its last digits."""
    return max(net_micros - math.floor(price * units * (1 - _ROUNDING)), 0)


def _least_gain_micros(net_micros: int, units: float, price: float) -> int:
    """Return a lower bound on the counted gain of a bid, alone or with others of its class."""
    return max(net_micros - math.ceil(price * units * (1 + _ROUNDING)), 0)


def _room_micros(point: _Point, shared: list[float], own: list[float], price: float) -> int:
    """Return the price of node-slots, shared ones at the price of the previous period if that is higher."""
    micros = point.units(*shared) * max(price, point.price_before) + point.units(*own) * price
    return math.ceil(micros * (1 + _ROUNDING))


def _sums(room: list[list[float]]) -> list[float]:
    return [math.fsum(units[0] for units in room), math.fsum(units[1] for units in room)]
