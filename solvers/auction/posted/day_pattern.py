"""Which hours of the day ask for more than others, as far as one day's hours foretell the next day's.

A day and a night are no change of demand, and whoever takes them for one forgets every evening what was
learned by day. So what is asked for is averaged by hour of the day (UTC), and each hour is compared with the
same hour of the days before. A regression of the one on the other says which part of the differences between
hours comes back: so much of the pattern is believed. Where load comes in bursts that follow no clock, that is
next to nothing, and all hours count alike.
"""

import math
from typing import Any

import numpy as np

from schemas.base import HOURS_PER_DAY
from solvers.auction.market.fleet import Calendar
from solvers.compiled import Floats, Ints

_FEWEST_PAIRS = 20.0
"""So many hours must have been compared with those of a day before, older ones counting less: a whole day."""
_MEMORY_DAYS = 3.0
"""Over so many days hours are averaged, and comparisons fade."""
_SHORTEST = 5
"""A fifth of the span that prices look ahead is nearly half of the mean window of a task."""
_QUIETEST = 1 / 64
"""No hour is expected to ask for less than this part of the mean: never for nothing."""


class DayPattern:
    """Of one zone. Units are those of `DemandCurve`."""

    def __init__(self, calendar: Calendar, present_slot: int, horizon_slots: int) -> None:
        self._calendar = calendar
        self._present_slot = present_slot
        self._means: Floats = np.zeros(HOURS_PER_DAY)
        """(hours,) units asked for per slot that begins in this hour, the latest days counting most."""
        self._days = np.zeros(HOURS_PER_DAY, np.int64)
        """(hours,) on how many days the hour was seen, at most `_MEMORY_DAYS`."""
        self._sums: Floats = np.zeros(6)
        """Of hours seen again: how many, the means before, the units now, both squared, and their product."""
        self._hour = -1
        """The present one; negative before the first."""
        self._units = 0.0
        self._slots = 0
        """What was asked for in the present hour, and in how many slots that passed."""
        self._ahead: Floats = np.arange(1.0, horizon_slots + 1)
        """(slots,) sums of what is expected from the present slot on, up to each."""

    @property
    def believed_part(self) -> float:
        """How much of an hour's difference from the mean is expected to come back, from 0 to 1: the slope of
        the regression of hours on their means of the days before, less its standard error."""
        pairs, before, now, before_squared, now_squared, product = self._sums.tolist()
        before_variance = before_squared - before * before / max(pairs, 1.0)
        if pairs < _FEWEST_PAIRS or before_variance <= 0:
            return 0.0
        slope = (product - before * now / pairs) / before_variance
        unexplained = max(now_squared - now * now / pairs - slope * slope * before_variance, 0.0)
        error = math.sqrt(unexplained / (pairs - 2) / before_variance)
        return float(min(max(slope - error, 0.0), 1.0))

    def expected(self, first_slot: int, slots: int) -> Floats:
        """(slots,) what each slot is expected to ask for, as a part of what a slot does on average."""
        part, known = self.believed_part, self._days > 0
        mean = math.fsum(self._means[known].tolist()) / max(int(known.sum()), 1)
        if part <= 0 or mean <= 0:
            return np.ones(slots)
        by_hour = np.where(known, np.maximum(1 + part * (self._means / mean - 1), _QUIETEST), 1.0)
        return np.asarray(by_hour[self._hours(first_slot, slots)])

    def expected_ahead(self, slots: int) -> float:
        """What so many slots from the present one on ask for, in slots that ask for the mean, if all of them
        ask for as much as the busiest stretch of them that begins now and is `1 / _SHORTEST` or more of them.

        Room by night is no room for those who bid by day: that a night comes must not make the day cheap."""
        shortest = max(slots // _SHORTEST, 1)
        means = self._ahead[shortest - 1 : slots] / np.arange(shortest, slots + 1)
        return float(slots * means.max())

    def advance(self, slots: int, units: float) -> Floats:
        """Let slots pass, the first of which asked for so much and the others for nothing; returns what they
        were expected to ask for before."""
        expected = self.expected(self._present_slot, slots)
        hours = self._hours(self._present_slot, slots)
        for same_hour in np.split(hours, np.flatnonzero(np.diff(hours)) + 1):
            if same_hour[0] != self._hour:
                self._end_hour()
                self._hour = int(same_hour[0])
            self._units, units = self._units + units, 0.0
            self._slots += same_hour.size
        self._present_slot += slots
        self._look_ahead()
        return expected

    def state(self) -> dict[str, Any]:
        """Everything that changes, of types that msgpack writes."""
        return {
            "means": self._means.tolist(),
            "days": self._days.tolist(),
            "sums": self._sums.tolist(),
            "present": [self._present_slot, self._hour, self._units, self._slots],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another."""
        self._means, self._sums = np.array(state["means"], float), np.array(state["sums"], float)
        self._days = np.array(state["days"], np.int64)
        self._present_slot, self._hour, self._units, self._slots = state["present"]
        self._look_ahead()

    def _look_ahead(self) -> None:
        self._ahead = np.cumsum(self.expected(self._present_slot, len(self._ahead)))

    def _end_hour(self) -> None:
        if self._slots:
            hour, now = self._hour, self._units / self._slots
            before = float(self._means[hour])
            if self._days[hour] > 0:
                self._sums *= 1 - 1 / (_MEMORY_DAYS * HOURS_PER_DAY)
                self._sums += (1.0, before, now, before * before, now * now, before * now)
            self._days[hour] = min(self._days[hour] + 1, int(_MEMORY_DAYS))
            self._means[hour] = before + (now - before) / self._days[hour]
        self._units, self._slots = 0.0, 0

    def _hours(self, first_slot: int, slots: int) -> Ints:
        return self._calendar.hours_of(np.arange(first_slot, first_slot + slots))
