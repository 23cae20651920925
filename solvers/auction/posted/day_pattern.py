"""Which hours of the day ask for more than others, as far as one day's hours foretell the next day's.

A day and a night are no change of demand, and whoever takes them for one forgets every evening what was
learned by day. So what was asked for in each hour of a whole day (UTC) is kept as a part of that day's mean,
averaged over a few days, and each new day is compared with that average. A regression of the one on the other
says which part of the differences between hours comes back: so much of the pattern is believed. Where load
comes in bursts that follow no clock, that is next to nothing, and all hours count alike. As every day counts
by its own mean, days that differ from each other as a whole make no hours differ.

A habit may end on any day. So what the last hours asked for is compared with the pattern too, slot by slot,
and where they do not follow it, it is not believed, whatever the days before were like.
"""

import math
from typing import Any

import numpy as np

from schemas.base import HOURS_PER_DAY
from solvers.auction.market.fleet import Calendar
from solvers.auction.posted.demand_curve import power
from solvers.auction.posted.room import MOST_SUSTAINED
from solvers.compiled import Floats, kernel

_HOUR_S = 3_600.0
_MEMORY_DAYS = 3
"""Over so many days hours are averaged, and comparisons fade."""
_LONGEST_PAUSE_DAYS = 2
"""After more of them the present day counts as begun anew."""
_DOUBT_S = 3 * _HOUR_S
"""Comparisons of slots with the pattern fade over so long."""
_QUIETEST = 1 / 64
"""No hour is expected to ask for less than this part of the mean: never for nothing."""


class DayPattern:
    """Of one zone. Units are those of `DemandCurve`."""

    def __init__(self, calendar: Calendar, present_slot: int, horizon_slots: int) -> None:
        self._calendar = calendar
        self._present_slot = present_slot
        self._shape: Floats = np.ones(HOURS_PER_DAY)
        """(hours,) what a slot that begins in this hour asks for, as a part of the mean of a day's hours: the
        average of the latest days."""
        self._days = np.zeros(HOURS_PER_DAY, np.int64)
        """(hours,) of how many days, at most `_MEMORY_DAYS`."""
        self._sums: Floats = np.zeros(4)
        """Of hours compared, older ones counting less: how many; and of what they and their average differ
        from the mean by, the average's squares, the products, and their own squares."""
        self._mean_units = 0.0
        """What a slot asks for in the mean of those days."""
        self._mean_days = 0
        """Of how many days, at most `_MEMORY_DAYS`."""
        self._lately: Floats = np.zeros(2)
        """Of slots compared, older ones counting less: of what hours differ from the mean by, the squares,
        and the products with what they themselves do."""
        self._day = -1
        """Which one is the present, since the beginning of 1970."""
        self._is_whole = False
        """Whether it was seen from its beginning."""
        self._units: Floats = np.zeros(HOURS_PER_DAY)
        self._slots = np.zeros(HOURS_PER_DAY, np.int64)
        """(hours,) what was asked for in the present day, and in how many slots that passed."""
        self.believed_part = 0.0
        """How much of an hour's difference from the mean is expected to come back, from 0 to 1: the slope of
        the regression of hours on their averages of the days before, less its standard error; times that of
        the last hours' slots, where it is below 1."""
        self.by_hour: tuple[float, ...] = (1.0,) * HOURS_PER_DAY
        """What a slot that begins in each hour is expected to ask for, as a part of the mean."""
        self._ahead: Floats = np.arange(1.0, horizon_slots + 1)
        """(slots,) sums of what is expected from the present slot on, up to each."""

    def expected(self, slots: int) -> Floats:
        """(slots,) what each slot from the present one on is expected to ask for, as a part of the mean."""
        hours = self._calendar.hours_of(np.arange(self._present_slot, self._present_slot + slots))
        return np.array(self.by_hour)[hours]

    def expected_ahead(self, slots: int, busiest_slots: int) -> float:
        """What so many slots from the present one on ask for, in slots that ask for the mean, if all of them
        ask for as much as the busiest stretch of them that begins now.

        Room by night is no room for those who bid by day: that a night comes must not make the day cheap.

        Args:
            busiest_slots: of how many that stretch is at least.
        """
        return _busiest_mean(self._ahead, slots, busiest_slots) * slots

    def advance(self, slots: int, units: float, room_units: float) -> None:
        """Let slots pass, the first of which asked for so much and the others for nothing.

        Args:
            room_units: what the zone has room for in a slot.
        """
        units = min(units, MOST_SUSTAINED * room_units)  # a burst is no habit
        if slots * self._calendar.slot_s > _LONGEST_PAUSE_DAYS * HOURS_PER_DAY * _HOUR_S:
            self._day = -1
            self._lately[:] = 0.0
        else:
            slot, last = self._present_slot, self._present_slot + slots
            while slot < last:
                end = slot + 1 if units > 0 else min(self._end_of_hour(slot), last)
                self._pass(slot, end - slot, units)
                slot, units = end, 0.0
        self._present_slot += slots
        self._believe()
        self._look_ahead()

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
        """Take the state of another."""
        self._shape, self._sums, self._lately, self._units = (
            np.array(state[name], float) for name in ("shape", "sums", "lately", "units")
        )
        self._mean_units, self._mean_days = state["mean"]
        self._days, self._slots = (np.array(state[name], np.int64) for name in ("days", "slots"))
        self._present_slot, self._day, self._is_whole = state["present"]
        self._believe()
        self._look_ahead()

    def _end_of_hour(self, slot: int) -> int:
        """The first slot that begins in another hour."""
        end_s = (math.floor(self._calendar.start_s(slot) / _HOUR_S) + 1) * _HOUR_S
        last = self._calendar.slot_at(end_s)
        return last + (self._calendar.start_s(last) < end_s)

    def _pass(self, slot: int, slots: int, units: float) -> None:
        """Let slots of one hour pass, each of which asked for so much."""
        start_s = self._calendar.start_s(slot)
        day, hour = divmod(math.floor(start_s / _HOUR_S), HOURS_PER_DAY)
        if day != self._day:
            if self._is_whole and self._day >= 0:
                self._end_day()
            self._day = day
            since_s = start_s - day * HOURS_PER_DAY * _HOUR_S
            self._is_whole = since_s < max(_HOUR_S, self._calendar.slot_s)
            self._units[:], self._slots[:] = 0.0, 0
        self._units[hour] += slots * units
        self._slots[hour] += slots
        if self._mean_units > 0:
            kept = _DOUBT_S / (_DOUBT_S + self._calendar.slot_s)
            kept_of_all = power(kept, slots)
            usual = float(self._shape[hour]) - 1
            # A slot is no further from the mean than the busiest hour: one large bid must not end a habit.
            asked = min(units / self._mean_units, float(self._shape.max())) - 1
            self._lately *= kept_of_all
            # The sum of what is kept of each: one, of one.
            each = (1 - kept_of_all) / (1 - kept)
            self._lately += (each * (usual * usual), each * (usual * asked))

    def _end_day(self) -> None:
        """Compare the day with the average of those before it, and take it into that."""
        seen = self._slots > 0
        per_slot = self._units / np.maximum(self._slots, 1)
        mean = math.fsum(per_slot.tolist()) / int(seen.sum())
        if mean <= 0:
            return
        again = seen & (self._days > 0)
        if again.any():
            before, now = (self._shape - 1)[again], (per_slot / mean - 1)[again]
            products = (before * before, before * now, now * now)
            self._sums *= 1 - 1 / _MEMORY_DAYS
            self._sums += (float(again.sum()), *(math.fsum(each.tolist()) for each in products))
        self._days[seen] = np.minimum(self._days[seen] + 1, _MEMORY_DAYS)
        self._shape[seen] += (per_slot[seen] / mean - self._shape[seen]) / self._days[seen]
        self._mean_days = min(self._mean_days + 1, _MEMORY_DAYS)
        self._mean_units += (mean - self._mean_units) / self._mean_days

    def _believe(self) -> None:
        pairs, before_squared, product, now_squared = self._sums.tolist()
        self.believed_part = 0.0
        if pairs > 2 and before_squared > 0:
            slope = product / before_squared
            unexplained = max(now_squared - slope * product, 0.0)
            error = math.sqrt(unexplained / (pairs - 2) / before_squared)
            squares, product_lately = self._lately.tolist()
            follows = min(max(product_lately / squares, 0.0), 1.0) if squares > 0 else 1.0
            self.believed_part = min(max(slope - error, 0.0), 1.0) * follows
        by_hour = np.maximum(1 + self.believed_part * (self._shape - 1), _QUIETEST)
        self.by_hour = tuple(by_hour.tolist())

    def _look_ahead(self) -> None:
        self._ahead = np.cumsum(self.expected(len(self._ahead)))


@kernel
def _busiest_mean(ahead: Floats, slots: int, busiest_slots: int) -> float:
    """The highest mean of the first slots, so many at least."""
    highest = -np.inf
    for count in range(busiest_slots, slots + 1):
        highest = max(highest, ahead[count - 1] / count)
    return highest
