"""How far loads have exceeded what was planned for: the margin that plans keep."""

import math
from bisect import bisect_left, insort
from collections import deque

from infra.lender.history import LoadHistory


class Margin:
    """A quantile of the excess of loads over plans.

    A plan is for a number of intervals ahead; its excess is the highest load reported in them less the load
    that was planned for. So the margin covers the forecaster's errors and the bursts within an interval, as
    large as this zone's are, and needs no assumption about either.
    """

    def __init__(self, quantile: float, kept_intervals: int) -> None:
        """No plan has been judged yet; the margin is nothing."""
        self._quantile = quantile
        self._kept_intervals = kept_intervals
        self._excesses: deque[float] = deque()
        self._ordered: list[float] = []
        """The same, by size."""
        self._plans: deque[tuple[int, int, float]] = deque()
        """Plans whose time is not over: made in which interval, for how many, the load planned for."""

    @property
    def load(self) -> float:
        """The margin, as a load. With few plans judged it is the largest excess."""
        if not self._ordered:
            return 0.0
        place = math.ceil(self._quantile * (len(self._ordered) + 1))
        return max(self._ordered[min(max(place, 1), len(self._ordered)) - 1], 0.0)

    def planned(self, history: LoadHistory, intervals: int, load: float) -> None:
        """Note a plan for the next `intervals` after the history's last, and judge those that are over."""
        while self._plans and self._plans[0][0] + self._plans[0][1] < history.last:
            made, ahead, planned = self._plans.popleft()
            peaks = [history.peak(index) for index in range(made + 1, made + ahead + 1)]
            known = [peak for peak in peaks if peak is not None]
            if len(known) == ahead:
                self._note(max(known) - planned)
        self._plans.append((history.last, intervals, load))

    def _note(self, excess: float) -> None:
        if len(self._excesses) == self._kept_intervals:
            oldest = self._excesses.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._excesses.append(excess)
        insort(self._ordered, excess)
