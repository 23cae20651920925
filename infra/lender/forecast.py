"""What a forecaster of inference loads is, and the simplest one."""

from typing import Protocol

from infra.lender.history import LoadHistory


class Forecaster(Protocol):
    """Foretells loads from those so far. The history has one report at least."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """The mean load, 0 to 1, of each of the `steps` intervals after the history's last."""
        ...


class LastValue:
    """Everything stays as it is: what a forecaster must beat to be worth anything."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """The present interval's mean for all intervals to come."""
        return [present_load(history)] * steps


def present_load(history: LoadHistory) -> float:
    """The mean of the last interval, which has a report."""
    mean = history.mean(history.last)
    assert mean is not None, "a forecast is asked of a history with a report"
    return mean


def clipped(load: float) -> float:
    """The nearest load that there can be."""
    return min(max(load, 0.0), 1.0)
