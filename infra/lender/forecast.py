"""Forecasters of inference loads: the seasonal-naive forecast, and the selection of the better of two."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Protocol

from infra.lender.history import LoadHistory


class Forecaster(Protocol):
    """Forecasts loads from a history of one report at least."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Return the mean load, 0 to 1, of each of the `steps` intervals after the history's last."""
        ...


def present_load(history: LoadHistory) -> float:
    """Return the mean of the last interval, which has a report."""
    mean = history.mean(history.last)
    assert mean is not None, "a forecast needs a history with a report"
    return mean


def clipped(load: float) -> float:
    """Return the nearest valid load."""
    return min(max(load, 0.0), 1.0)


@dataclass(frozen=True)
class SeasonalNaive:
    """Mean load at this time of day over the last `days` days, plus today's distance from it.

    The distance is a mean too, over the last `level_intervals`, and fades slowly. The present load's
    difference from both, a burst, fades fast. So neither an unusual hour nor a burst lasts all day. Where the
    loads of the days before are unknown, as in the first day, the forecast is the present load.
    """

    days: int = 3
    level_intervals: int = 6
    persistence: float = 0.98
    """Part of today's distance that is left from one interval to the next."""
    burst_persistence: float = 0.5
    """Part of a burst that is left from one interval to the next."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`."""
        present = present_load(history)
        distance = self._distance(history)
        if distance is None:
            return [present] * steps
        season_now = self._season(history, history.last)
        burst = 0.0 if season_now is None else present - season_now - distance
        loads = []
        for step in range(1, steps + 1):
            distance *= self.persistence
            burst *= self.burst_persistence
            season = self._season(history, history.last + step)
            loads.append(present if season is None else clipped(season + distance + burst))
        return loads

    def _distance(self, history: LoadHistory) -> float | None:
        """Return the mean of recent loads above those of the days before; None where it is unknown."""
        distances = [
            load - season
            for index in range(history.last - self.level_intervals + 1, history.last + 1)
            if (load := history.mean(index)) is not None
            and (season := self._season(history, index)) is not None
        ]
        return fsum(distances) / len(distances) if distances else None

    def _season(self, history: LoadHistory, index: int) -> float | None:
        """Return the mean load at this time of the days before; None where all are unknown."""
        day = history.intervals_per_day
        ahead = max(-(-(index - history.last) // day), 1)
        """Whole days from `index` back to the nearest past one."""
        known = [
            load
            for back in range(ahead, ahead + self.days)
            if (load := history.mean(index - back * day)) is not None
        ]
        return fsum(known) / len(known) if known else None


Trainer = Callable[[LoadHistory, int], Forecaster | None]
"""Trains a forecaster on a history up to an interval, that one included; None if it is too short."""


@dataclass(frozen=True)
class Comparison:
    """Recent errors of the two forecasters."""

    intervals: int
    """Number of one-step forecasts of both that are compared."""
    trained_error: float | None
    """Root mean squared error of loads; None before the first comparison."""
    seasonal_error: float | None
    uses_trained: bool


class Selection:
    """A `Forecaster` that compares two by the last days' one-step errors, and uses the better one.

    Before the trained one is first used, it is trained without the last day and evaluated on that day. From
    then on, each interval's forecasts are evaluated when the interval is over, and every `retrain_s` another
    one is trained on all of the history. No forecaster is evaluated on loads that it was trained on.
    """

    def __init__(
        self,
        seasonal: Forecaster,
        train: Trainer,
        interval_s: float = 300.0,
        retrain_s: float = 6 * 3_600.0,
        evaluated_s: float = 86_400.0,
        trained_steps: int = 3,
    ) -> None:
        """Begin without a trained forecaster.

        Args:
            seasonal: Forecaster that needs no training.
            retrain_s: Interval of trainings.
            evaluated_s: Time for which errors count.
            trained_steps: Intervals ahead for which the trained one is used. Later intervals are left to the
                seasonal one, which depends on the time of day and not on the last hour alone.
        """
        self._seasonal = seasonal
        self._train = train
        self._retrain_intervals = max(round(retrain_s / interval_s), 1)
        self._evaluated_intervals = max(round(evaluated_s / interval_s), 1)
        self._trained_steps = trained_steps
        self._trained: Forecaster | None = None
        self._train_from = 0
        """Interval from which on the next training is due."""
        self._awaited: deque[tuple[int, float, float]] = deque()
        """Intervals that are not over, and the forecasts of each: trained, seasonal."""
        self._squares: deque[tuple[float, float]] = deque(maxlen=self._evaluated_intervals)
        """Squared errors: trained, seasonal."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`. Call it at the start of each interval: it evaluates past forecasts."""
        self._evaluate(history)
        if history.last >= self._train_from:
            self._retrain(history)
        seasonal = self._seasonal.forecast(history, steps)
        if self._trained is None:
            return seasonal
        trained = self._trained.forecast(history, min(steps, self._trained_steps))
        self._awaited.append((history.last + 1, trained[0], seasonal[0]))
        return [*trained, *seasonal[len(trained) :]] if self.comparison.uses_trained else seasonal

    @property
    def comparison(self) -> Comparison:
        """Errors of both. The seasonal one is used on ties, and until a quarter of the time is compared."""
        count = len(self._squares)
        if not count:
            return Comparison(0, None, None, uses_trained=False)
        trained, seasonal = (sqrt(fsum(errors) / count) for errors in zip(*self._squares, strict=True))
        enough = 4 * count >= self._evaluated_intervals
        return Comparison(count, trained, seasonal, uses_trained=enough and trained < seasonal)

    def _evaluate(self, history: LoadHistory) -> None:
        """Compare the forecasts of intervals that are over with their loads."""
        while self._awaited and self._awaited[0][0] < history.last:
            index, *forecasts = self._awaited.popleft()
            self._add_errors(history.mean(index), forecasts)

    def _add_errors(self, load: float | None, forecasts: list[float]) -> None:
        if load is not None:
            trained, seasonal = ((load - forecast) ** 2 for forecast in forecasts)
            self._squares.append((trained, seasonal))

    def _retrain(self, history: LoadHistory) -> None:
        self._train_from = history.last + self._retrain_intervals
        if self._trained is None:
            self._evaluate_without_last_day(history)
        # The last interval is not over yet.
        self._trained = self._train(history, history.last - 1)

    def _evaluate_without_last_day(self, history: LoadHistory) -> None:
        """Add the errors that both would have made on the last day."""
        end = history.last - self._evaluated_intervals
        trained = self._train(history, end - 1) if end > history.first else None
        if trained is None:
            return
        for index in range(end, history.last):
            if history.mean(index - 1) is not None:
                past = history.up_to(index - 1)
                forecasts = [one.forecast(past, 1)[0] for one in (trained, self._seasonal)]
                self._add_errors(history.mean(index), forecasts)
