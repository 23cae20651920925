"""Loads of a zone so far, on a fixed grid of time, and the margin of plans that follows from them."""

import math
from bisect import bisect_left, insort
from collections import deque
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Self

LONGEST_BRIDGED_INTERVALS = 3
"""Longest run of intervals without a report that is interpolated; the loads of a longer one stay unknown."""


@dataclass(slots=True)
class _ReportedInterval:
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
        self._intervals: deque[_ReportedInterval] = deque(maxlen=kept_intervals)
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

    def _at(self, index: int) -> _ReportedInterval | None:
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
                self._intervals.append(_ReportedInterval(0.0, 0, 0.0))
            else:
                between = before + (load - before) * number / (missing + 1)
                self._intervals.append(_ReportedInterval(between, 1, between))
        self._intervals.append(_ReportedInterval(0.0, 0, 0.0))
        self.last = index


class Margin:
    """A quantile of the excess of loads over plans.

    A plan is for a number of intervals ahead; its excess is the highest load reported in them less the
    planned load. So the margin covers the measured errors of the forecaster and the bursts within an
    interval of this zone, without assumptions about either.
    """

    def __init__(self, quantile: float, kept_intervals: int) -> None:
        """Begin without plans; the margin is 0."""
        self._quantile = quantile
        self._kept_intervals = kept_intervals
        self._excesses: deque[float] = deque()
        self._ordered: list[float] = []
        """Excesses in ascending order."""
        self._plans: deque[tuple[int, int, float]] = deque()
        """Plans whose time is not over: interval, number of intervals ahead, planned load."""

    @property
    def load(self) -> float:
        """Margin as a load. With few plans evaluated it is the largest excess."""
        if not self._ordered:
            return 0.0
        place = math.ceil(self._quantile * (len(self._ordered) + 1))
        return max(self._ordered[min(max(place, 1), len(self._ordered)) - 1], 0.0)

    def add_plan(self, history: LoadHistory, intervals: int, load: float) -> None:
        """Add a plan for the next `intervals` after the history's last, and evaluate those that are over."""
        while self._plans and self._plans[0][0] + self._plans[0][1] < history.last:
            made, ahead, planned = self._plans.popleft()
            peaks = [history.peak(index) for index in range(made + 1, made + ahead + 1)]
            known = [peak for peak in peaks if peak is not None]
            if len(known) == ahead:
                self._add_excess(max(known) - planned)
        self._plans.append((history.last, intervals, load))

    def _add_excess(self, excess: float) -> None:
        if len(self._excesses) == self._kept_intervals:
            oldest = self._excesses.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._excesses.append(excess)
        insort(self._ordered, excess)
