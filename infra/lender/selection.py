"""Which forecaster is believed: the LSTM while it beats the seasonal-naive forecast, else that one."""

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
    """How the two have done of late."""

    intervals: int
    """So many one-step forecasts of both are compared."""
    trained_error: float | None
    """Root mean squared error of loads; None while nothing is compared."""
    seasonal_error: float | None
    uses_trained: bool


class Selection:
    """A `Forecaster` that compares two on the last days' one-step errors, and takes the better one.

    Before the trained one is first used, it is trained without the last day and judged on that day. From then
    on each interval's forecasts are judged when the interval is over, and every `retrain_s` another one is
    trained on all of the history. None is ever judged on what it was trained on.
    """

    def __init__(
        self,
        seasonal: Forecaster,
        train: Trainer,
        interval_s: float = 300.0,
        retrain_s: float = 6 * 3_600.0,
        judged_s: float = 86_400.0,
        trained_steps: int = 3,
    ) -> None:
        """Nothing is trained yet.

        Args:
            retrain_s: how often it is trained.
            judged_s: errors of so long a time count.
            trained_steps: for so many intervals ahead the trained one is believed; whatever lies beyond is
                left to the seasonal one, which knows of a later time what the last hour does not tell.
        """
        self._seasonal = seasonal
        self._train = train
        self._retrain_intervals = max(round(retrain_s / interval_s), 1)
        self._judged_intervals = max(round(judged_s / interval_s), 1)
        self._trained_steps = trained_steps
        self._trained: Forecaster | None = None
        self._train_from = 0
        """The interval from which on it is trained next."""
        self._awaited: deque[tuple[int, float, float]] = deque()
        """Intervals that are not over, and the forecasts of each by both."""
        self._squares: deque[tuple[float, float]] = deque(maxlen=self._judged_intervals)
        """Squared errors: of the trained one, of the seasonal one."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """See `Forecaster`. Ask it when an interval begins: that is when forecasts are judged."""
        self._judge(history)
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
        """How both have done; the seasonal one wins ties, and where less than a quarter is compared."""
        count = len(self._squares)
        if not count:
            return Comparison(0, None, None, uses_trained=False)
        trained, seasonal = (sqrt(fsum(errors) / count) for errors in zip(*self._squares, strict=True))
        enough = 4 * count >= self._judged_intervals
        return Comparison(count, trained, seasonal, uses_trained=enough and trained < seasonal)

    def _judge(self, history: LoadHistory) -> None:
        """Compare the forecasts of intervals that are over with what these brought."""
        while self._awaited and self._awaited[0][0] < history.last:
            index, *forecasts = self._awaited.popleft()
            self._note(history.mean(index), forecasts)

    def _note(self, load: float | None, forecasts: list[float]) -> None:
        if load is not None:
            trained, seasonal = ((load - forecast) ** 2 for forecast in forecasts)
            self._squares.append((trained, seasonal))

    def _retrain(self, history: LoadHistory) -> None:
        self._train_from = history.last + self._retrain_intervals
        if self._trained is None:
            self._judge_without_last_day(history)
        # The last interval is not over yet.
        self._trained = self._train(history, history.last - 1)

    def _judge_without_last_day(self, history: LoadHistory) -> None:
        """Fill in the errors that both would have made on the last day."""
        end = history.last - self._judged_intervals
        trained = self._train(history, end - 1) if end > history.first else None
        if trained is None:
            return
        for index in range(end, history.last):
            if history.mean(index - 1) is not None:
                past = history.up_to(index - 1)
                forecasts = [one.forecast(past, 1)[0] for one in (trained, self._seasonal)]
                self._note(history.mean(index), forecasts)
