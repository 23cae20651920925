"""Protocol of forecasters of inference loads, and the simplest one."""

from typing import Protocol

from infra.lender.history import LoadHistory


class Forecaster(Protocol):
    """Forecasts loads from a history of one report at least."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Return the mean load, 0 to 1, of each of the `steps` intervals after the history's last."""
        ...


class LastValue:
    """Forecasts the present load: the baseline that any other forecaster must beat."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Return the present interval's mean for all intervals to come."""
        return [present_load(history)] * steps


def present_load(history: LoadHistory) -> float:
    """Return the mean of the last interval, which has a report."""
    mean = history.mean(history.last)
    assert mean is not None, "a forecast needs a history with a report"
    return mean


def clipped(load: float) -> float:
    """Return the nearest valid load."""
    return min(max(load, 0.0), 1.0)
