"""Demand by hour of the day, in so far as it repeats from day to day.

Day and night are no change of demand: if they counted as one, the data of the day would be lost every
evening. So the demand of each hour of a whole day (UTC) is kept as a part of that day's mean, averaged over a
few days, and each new day is compared with that average. The slope of a regression of the day on the average
is the repeating part of the differences between hours: the weight of the pattern. If bursts do not depend on
the hour, it is almost 0, and all hours count equally. Since every day counts relative to its own mean,
differences between whole days do not affect the hours.

A pattern may end on any day. So the demand of the last hours is compared with the pattern too, slot by slot.
If they do not follow it, its weight is low, whatever the days before.
"""

import math
from typing import Any

import numpy as np

from schemas.base import HOURS_PER_DAY
from solvers.auction.market.fleet import Calendar
from solvers.auction.posted.constants import (
    DOUBT_S,
    HOUR_S,
    LONGEST_PAUSE_DAYS,
    MEMORY_DAYS,
    MOST_SUSTAINED,
    QUIETEST_PART,
)
from solvers.auction.posted.demand_curve import power
from solvers.compiled import Floats, kernel


class DayPattern:
    """Day pattern of one zone. Units are those of `DemandCurve`."""

    def __init__(self, calendar: Calendar, present_slot: int, horizon_slots: int) -> None:
        self._calendar = calendar
        self._present_slot = present_slot
        self._shape: Floats = np.ones(HOURS_PER_DAY)
        """Demand of a slot that begins in each hour, as a part of the mean of a day's hours, averaged over
        the latest days, (hours,)."""
        self._days = np.zeros(HOURS_PER_DAY, np.int64)
        """Number of averaged days, at most `MEMORY_DAYS`, (hours,)."""
        self._sums: Floats = np.zeros(4)
        """Faded sums over compared hours of 1, x x, x y and y y, where x is the difference of the average
        from the mean, and y that of the hour."""
        self._mean_units = 0.0
        """Mean demand of a slot over those days."""
        self._mean_days = 0
        """Number of days of that mean, at most `MEMORY_DAYS`."""
        self._lately: Floats = np.zeros(2)
        """Faded sums over compared slots of x x and x y, where x is the difference of the hour from the mean,
        and y that of the slot."""
        self._day = -1
        """Number of the present day since the beginning of 1970."""
        self._is_whole = False
        """Whether the present day is complete from its beginning."""
        self._units: Floats = np.zeros(HOURS_PER_DAY)
        self._slots = np.zeros(HOURS_PER_DAY, np.int64)
        """Demand of the present day, and the number of past slots, (hours,) each."""
        self.believed_part = 0.0
        """Weight of the pattern: the repeating part of an hour's difference from the mean, from 0 to 1. It is
        the slope of the regression of hours on their averages of earlier days, less its standard error. It is
        multiplied by the slope over the slots of the last hours, if that is below 1."""
        self.by_hour: tuple[float, ...] = (1.0,) * HOURS_PER_DAY
        """Expected demand of a slot that begins in each hour, as a part of the mean."""
        self._ahead: Floats = np.arange(1.0, horizon_slots + 1)
        """Cumulative expected demand from the present slot on, (slots,)."""

    def expected(self, slots: int) -> Floats:
        """Return the expected demand of the slots from the present one on, in parts of the mean, (slots,)."""
        hours = self._calendar.hours_of(np.arange(self._present_slot, self._present_slot + slots))
        return np.array(self.by_hour)[hours]

    def expected_ahead(self, slots: int, busiest_slots: int) -> float:
        """Return the expected demand from the present slot on, in slots of mean demand, if all slots were
        like the busiest stretch that begins now.

        Room by night is no room for bids by day: a coming night must not lower the prices of the day.

        Args:
            slots: number of slots.
            busiest_slots: least length of that stretch.
        """
        return _busiest_mean(self._ahead, slots, busiest_slots) * slots

    def advance(self, slots: int, units: float, room_units: float) -> None:
        """Advance by slots, the first of which had all of the demand.

        Args:
            units: demand of the first slot.
            room_units: capacity of the zone in a slot.
        """
        units = min(units, MOST_SUSTAINED * room_units)  # a burst is no pattern
        if slots * self._calendar.slot_s > LONGEST_PAUSE_DAYS * HOURS_PER_DAY * HOUR_S:
            self._day = -1
            self._lately[:] = 0.0
        else:
            slot, last = self._present_slot, self._present_slot + slots
            while slot < last:
                end = slot + 1 if units > 0 else min(self._end_of_hour(slot), last)
                self._pass(slot, end - slot, units)
                slot, units = end, 0.0
        self._present_slot += slots
        self._update_weight()
        self._update_expected()

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "shape": self._shape.tolist(),
            "days": self._days.tolist(),
            "sums": self._sums.tolist(),
            "mean": [self._mean_units, self._mean_days],
            "lately": self._lately.tolist(),
            "present": [self._present_slot, self._day, self._is_whole],
            "units": self._units.tolist(),
            "slots": self._slots.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state."""
        self._shape, self._sums, self._lately, self._units = (
            np.array(state[name], float) for name in ("shape", "sums", "lately", "units")
        )
        self._mean_units, self._mean_days = state["mean"]
        self._days, self._slots = (np.array(state[name], np.int64) for name in ("days", "slots"))
        self._present_slot, self._day, self._is_whole = state["present"]
        self._update_weight()
        self._update_expected()

    def _end_of_hour(self, slot: int) -> int:
        """Return the first slot that begins in another hour."""
        end_s = (math.floor(self._calendar.start_s(slot) / HOUR_S) + 1) * HOUR_S
        last = self._calendar.slot_at(end_s)
        return last + (self._calendar.start_s(last) < end_s)

    def _pass(self, slot: int, slots: int, units: float) -> None:
        """Advance by slots of one hour, each with the same demand."""
        start_s = self._calendar.start_s(slot)
        day, hour = divmod(math.floor(start_s / HOUR_S), HOURS_PER_DAY)
        if day != self._day:
            if self._is_whole and self._day >= 0:
                self._end_day()
            self._day = day
            since_s = start_s - day * HOURS_PER_DAY * HOUR_S
            self._is_whole = since_s < max(HOUR_S, self._calendar.slot_s)
            self._units[:], self._slots[:] = 0.0, 0
        self._units[hour] += slots * units
        self._slots[hour] += slots
        if self._mean_units > 0:
            kept = DOUBT_S / (DOUBT_S + self._calendar.slot_s)
            kept_of_all = power(kept, slots)
            usual = float(self._shape[hour]) - 1
            # The deviation of a slot is at most that of the busiest hour: one large bid must not end a
            # pattern.
            asked = min(units / self._mean_units, float(self._shape.max())) - 1
            self._lately *= kept_of_all
            # Sum of a geometric series; 1 for one slot.
            each = (1 - kept_of_all) / (1 - kept)
            self._lately += (each * (usual * usual), each * (usual * asked))

    def _end_day(self) -> None:
        """Compare the day with the average of earlier days, and add it to the average."""
        seen = self._slots > 0
        per_slot = self._units / np.maximum(self._slots, 1)
        mean = math.fsum(per_slot.tolist()) / int(seen.sum())
        if mean <= 0:
            return
        again = seen & (self._days > 0)
        if again.any():
            before, now = (self._shape - 1)[again], (per_slot / mean - 1)[again]
            products = (before * before, before * now, now * now)
            self._sums *= 1 - 1 / MEMORY_DAYS
            self._sums += (float(again.sum()), *(math.fsum(each.tolist()) for each in products))
        self._days[seen] = np.minimum(self._days[seen] + 1, MEMORY_DAYS)
        self._shape[seen] += (per_slot[seen] / mean - self._shape[seen]) / self._days[seen]
        self._mean_days = min(self._mean_days + 1, MEMORY_DAYS)
        self._mean_units += (mean - self._mean_units) / self._mean_days

    def _update_weight(self) -> None:
        pairs, before_squared, product, now_squared = self._sums.tolist()
        self.believed_part = 0.0
        if pairs > 2 and before_squared > 0:
            slope = product / before_squared
            unexplained = max(now_squared - slope * product, 0.0)
            error = math.sqrt(unexplained / (pairs - 2) / before_squared)
            squares, product_lately = self._lately.tolist()
            follows = min(max(product_lately / squares, 0.0), 1.0) if squares > 0 else 1.0
            self.believed_part = min(max(slope - error, 0.0), 1.0) * follows
        by_hour = np.maximum(1 + self.believed_part * (self._shape - 1), QUIETEST_PART)
        self.by_hour = tuple(by_hour.tolist())

    def _update_expected(self) -> None:
        self._ahead = np.cumsum(self.expected(len(self._ahead)))


@kernel
def _busiest_mean(ahead: Floats, slots: int, busiest_slots: int) -> float:
    """Return the highest mean of the first n slots, for n of at least `busiest_slots`."""
    highest = -np.inf
    for count in range(busiest_slots, slots + 1):
        highest = max(highest, ahead[count - 1] / count)
    return highest
