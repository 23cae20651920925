"""Selection of the forecaster: the LSTM while it beats the seasonal-naive forecast, else that one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, sqrt

from infra.lender.forecast import Forecaster
from infra.lender.history import LoadHistory

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
            train: Trains the other.
            interval_s: Length of an interval.
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
