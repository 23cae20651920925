"""Loads of a zone so far, on a fixed grid of time."""

import math
from collections import deque
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Self

LONGEST_BRIDGED_INTERVALS = 3
"""Longest run of intervals without a report that is interpolated; the loads of a longer one stay unknown."""


@dataclass(slots=True)
class _Interval:
    """Sum, number and peak of the reports of one interval."""

    total: float
    reports: int
    peak: float

    @property
    def mean(self) -> float | None:
        return self.total / self.reports if self.reports else None


class LoadHistory:
    """Mean and peak of the loads that were reported in each interval, for the last `kept_intervals`.

    Intervals are numbered from the start of the Unix epoch, so the grid does not depend on the first report.
    An interval may have any number of reports, at any times; its load is their unweighted mean.
    """

    def __init__(self, interval_s: float = 300.0, kept_intervals: int = 14 * 288) -> None:
        """Make an empty history. `interval_s` is five minutes in the thesis (section 3.6)."""
        self.interval_s = interval_s
        self._intervals: deque[_Interval] = deque(maxlen=kept_intervals)
        self.last = -1
        """Interval of the latest report; negative before the first."""
        self.latest_s = -math.inf
        """Time of the latest report."""

    @property
    def first(self) -> int:
        """Earliest interval that is kept."""
        return self.last - len(self._intervals) + 1

    @property
    def first_s(self) -> float:
        """Start of the earliest interval (Unix s)."""
        return self.first * self.interval_s

    @property
    def intervals_per_day(self) -> int:
        """Length of the daily season in intervals, at least one."""
        return max(round(86_400 / self.interval_s), 1)

    def add(self, time_s: float, load: float) -> bool:
        """Add a report; return False, and add nothing, if it is earlier than the latest.

        Several reports may have one time, because some count as of the time at which they were received.
        """
        if time_s < self.latest_s:
            return False
        index = math.floor(time_s / self.interval_s)
        if index > self.last:
            self._extend_to(index, load)
        interval = self._intervals[-1]
        interval.total += load
        interval.reports += 1
        interval.peak = max(interval.peak, load)
        self.latest_s = time_s
        return True

    def mean(self, index: int) -> float | None:
        """Return the mean load of an interval; None where it is unknown."""
        found = self._at(index)
        return None if found is None else found.mean

    def peak(self, index: int) -> float | None:
        """Return the highest load of an interval; None where it is unknown."""
        found = self._at(index)
        return found.peak if found is not None and found.reports else None

    def up_to(self, index: int) -> Self:
        """Return the history at the end of the interval `index`, which has a report."""
        past = copy(self)
        past._intervals = deque(islice(self._intervals, index - self.first + 1), self._intervals.maxlen)
        past.last = index
        past.latest_s = (index + 1) * self.interval_s
        return past

    def _at(self, index: int) -> _Interval | None:
        place = index - self.first
        return self._intervals[place] if 0 <= place < len(self._intervals) else None

    def _extend_to(self, index: int, load: float) -> None:
        """Make the interval of a new report the last one."""
        missing = index - self.last - 1 if self._intervals else 0
        if missing >= (self._intervals.maxlen or 0):
            self._intervals.clear()
            missing = 0
        before = self._intervals[-1].mean if self._intervals else None
        for number in range(1, missing + 1):
            if missing > LONGEST_BRIDGED_INTERVALS or before is None:
                self._intervals.append(_Interval(0.0, 0, 0.0))
            else:
                between = before + (load - before) * number / (missing + 1)
                self._intervals.append(_Interval(between, 1, between))
        self._intervals.append(_Interval(0.0, 0, 0.0))
        self.last = index
