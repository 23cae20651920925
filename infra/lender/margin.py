"""Margin of plans, from the excess of loads over earlier plans."""

import math
from bisect import bisect_left, insort
from collections import deque

from infra.lender.history import LoadHistory


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
