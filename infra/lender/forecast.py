"""Forecasters of inference loads: the last value, the seasonal-naive forecast, and a selection of them."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import fsum, sqrt
from types import MappingProxyType
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


SEASON_DAYS = 3
"""Days whose mean is the season."""


def season_of(history: LoadHistory, index: int, days: int = SEASON_DAYS) -> float | None:
    """Return the mean load at the time of day of an interval on the days before; None where all are unknown.

    Args:
        index: Interval; of one after the history's last, the days before the last count.
        days: Number of days.
    """
    day = history.intervals_per_day
    ahead = max(-(-(index - history.last) // day), 1)
    """Whole days from `index` back to the nearest past one."""
    known = [
        load for back in range(ahead, ahead + days) if (load := history.mean(index - back * day)) is not None
    ]
    return fsum(known) / len(known) if known else None


@dataclass(frozen=True)
class LastValue:
    """Present load, for all intervals ahead: persistence, which any other forecast has to beat."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`."""
        return [present_load(history)] * steps


@dataclass(frozen=True)
class SeasonalNaive:
    """Mean load at this time of day over the last `days` days, plus today's distance from it.

    The distance is a mean too, over the last `level_intervals`, and fades slowly. The present load's
    difference from both, a burst, fades fast. So neither an unusual hour nor a burst lasts all day. Where the
    loads of the days before are unknown, as in the first day, the forecast is the present load.
    """

    days: int = SEASON_DAYS
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
        season_now = season_of(history, history.last, self.days)
        burst = 0.0 if season_now is None else present - season_now - distance
        loads = []
        for step in range(1, steps + 1):
            distance *= self.persistence
            burst *= self.burst_persistence
            season = season_of(history, history.last + step, self.days)
            loads.append(present if season is None else clipped(season + distance + burst))
        return loads

    def _distance(self, history: LoadHistory) -> float | None:
        """Return the mean of recent loads above those of the days before; None where it is unknown."""
        distances = [
            load - season
            for index in range(history.last - self.level_intervals + 1, history.last + 1)
            if (load := history.mean(index)) is not None
            and (season := season_of(history, index, self.days)) is not None
        ]
        return fsum(distances) / len(distances) if distances else None


Trainer = Callable[[LoadHistory, int], Forecaster | None]
"""Trains a forecaster on a history up to an interval, that one included; None if it is too short."""

STANDING: Mapping[str, Forecaster] = MappingProxyType(
    {"last_value": LastValue(), "seasonal": SeasonalNaive()}
)
"""Forecasters without training, the simplest first."""
TRAINED = "lstm"
"""Name of the trained forecaster."""


@dataclass(frozen=True)
class Comparison:
    """Recent errors of forecasts of the next interval."""

    intervals: int
    """Number of forecasts of each that are compared."""
    errors: Mapping[str, float]
    """Root mean squared error of loads, by forecaster; empty before the first comparison."""
    used: str
    """Name of the forecaster of the next interval."""

    @property
    def skill(self) -> float | None:
        """Skill of the forecaster in use over persistence, 1 - error / error of the last value; None where
        that is not known or 0."""
        of_last = self.errors.get("last_value", 0.0)
        return 1 - self.errors[self.used] / of_last if of_last > 0 and self.used in self.errors else None


class RecentErrors:
    """Errors of several forecasters at the same number of intervals ahead."""

    def __init__(self, kept: int) -> None:
        """Begin without errors.

        Args:
            kept: Number of forecasts of each that count.
        """
        self._awaited: deque[tuple[int, Mapping[str, float]]] = deque()
        """Intervals that are not over, and the forecasts of each."""
        self._squares: deque[Mapping[str, float]] = deque(maxlen=kept)

    def expect(self, index: int, forecasts: Mapping[str, float]) -> None:
        """Add forecasts of an interval, to be evaluated when it is over."""
        self._awaited.append((index, forecasts))

    def evaluate(self, history: LoadHistory) -> None:
        """Compare the forecasts of intervals that are over with their loads."""
        while self._awaited and self._awaited[0][0] < history.last:
            index, forecasts = self._awaited.popleft()
            self.add(history.mean(index), forecasts)

    def add(self, load: float | None, forecasts: Mapping[str, float]) -> None:
        """Add forecasts of an interval that is over; those of an unknown load are left out."""
        if load is not None:
            self._squares.append({name: (load - forecast) ** 2 for name, forecast in forecasts.items()})

    def compared(self) -> tuple[int, dict[str, float]]:
        """Return the number of evaluated intervals for which the latest forecasters have all made forecasts,
        and the root mean squared error of each."""
        if not self._squares:
            return 0, {}
        names = self._squares[-1].keys()
        common = [squares for squares in self._squares if squares.keys() == names]
        return len(common), {name: sqrt(fsum(one[name] for one in common) / len(common)) for name in names}


MOST_EVALUATED = 2_000
"""Most forecasts of each forecaster whose errors count, for short intervals."""


class Selection:
    """A `Forecaster` that uses the one with the smallest recent error, for near and far intervals apart.

    Near intervals are the next `trained_steps`, far ones all later ones. Errors at the next interval decide
    about near ones, those at the last interval of a forecast about far ones. The trained one, whose window is
    short, makes no forecasts of far ones.

    When it begins, and when one is first trained, all are evaluated on the last days, a third of the history
    at most, the trained one after a training without these. From then on, forecasts are evaluated when their
    intervals are over, and every `retrain_s` another one is trained on all of the history. No forecaster is
    evaluated on loads that it was trained on.
    """

    def __init__(
        self,
        train: Trainer | None = None,
        interval_s: float = 300.0,
        retrain_s: float = 6 * 3_600.0,
        evaluated_s: float = 3 * 86_400.0,
        trained_steps: int = 3,
        standing: Mapping[str, Forecaster] = STANDING,
    ) -> None:
        """Begin without a trained forecaster.

        Args:
            train: Trainer; None to select among the standing ones.
            retrain_s: Interval of trainings.
            evaluated_s: Time for which errors count. Of one, three and seven days, three was chosen on the
                first halves of two series; of one day, a lucky forecaster is used on the next.
            trained_steps: Number of near intervals.
            standing: Forecasters without training by name. Of equal errors the first counts. The first is
                used for near intervals, and the last for far ones, until a quarter of the time is evaluated.
        """
        self._standing = standing
        self._train = train
        self._retrain_intervals = max(round(retrain_s / interval_s), 1)
        self._evaluated_intervals = min(max(round(evaluated_s / interval_s), 1), MOST_EVALUATED)
        self._trained_steps = trained_steps
        self._trained: Forecaster | None = None
        self._train_from = 0
        """Interval from which on the next training is due."""
        self._has_begun = False
        self._near = RecentErrors(self._evaluated_intervals)
        self._far = RecentErrors(self._evaluated_intervals)

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`. Call it at the start of each interval: it evaluates past forecasts."""
        if not self._has_begun:
            self._evaluate_past(history, self._far, steps, self._standing)
            self._evaluate_past(history, self._near, 1, self._standing)
            self._has_begun = True
        self._near.evaluate(history)
        self._far.evaluate(history)
        if self._train is not None and history.last >= self._train_from:
            self._retrain(history, self._train)
        far = {name: one.forecast(history, steps) for name, one in self._standing.items()}
        near = far
        if self._trained is not None:
            near = far | {TRAINED: self._trained.forecast(history, min(steps, self._trained_steps))}
        self._near.expect(history.last + 1, {name: loads[0] for name, loads in near.items()})
        self._far.expect(history.last + steps, {name: loads[-1] for name, loads in far.items()})
        soon = near[self._used_near][: self._trained_steps]
        return [*soon, *far[self._best(self._far, list(self._standing)[-1])][len(soon) :]]

    @property
    def comparison(self) -> Comparison:
        """Errors at the next interval, and the forecaster used for it."""
        count, errors = self._near.compared()
        return Comparison(count, errors, self._used_near)

    @property
    def _used_near(self) -> str:
        return self._best(self._near, next(iter(self._standing)))

    def _best(self, recent: RecentErrors, default: str) -> str:
        """Return the forecaster with the smallest error; the default until there are enough."""
        count, errors = recent.compared()
        if 4 * count < self._evaluated_intervals:
            return default
        return min(errors, key=errors.__getitem__)

    def _retrain(self, history: LoadHistory, train: Trainer) -> None:
        self._train_from = history.last + self._retrain_intervals
        if self._trained is None:
            without = train(history, history.last - self._past_intervals(history) - 1)
            if without is not None:
                self._trained = without
                self._evaluate_past(history, self._near, 1, {**self._standing, TRAINED: without})
        # The last interval is not over yet.
        self._trained = train(history, history.last - 1) or self._trained

    def _past_intervals(self, history: LoadHistory) -> int:
        """Return the number of past intervals to evaluate."""
        return min(self._evaluated_intervals, (history.last - history.first) // 3)

    def _evaluate_past(
        self, history: LoadHistory, recent: RecentErrors, steps: int, forecasters: Mapping[str, Forecaster]
    ) -> None:
        """Add the errors that forecasters would have made on the last days, so many intervals ahead."""
        for index in range(history.last - self._past_intervals(history), history.last):
            made = index - steps
            if made >= history.first and history.mean(made) is not None:
                past = history.up_to(made)
                recent.add(
                    history.mean(index),
                    {name: one.forecast(past, steps)[-1] for name, one in forecasters.items()},
                )
