"""Skill over the last value: none without training, all of it on a load that repeats."""

import math

import pytest

from bench.elastic.forecast_skill import Latest, LoadSeries, generated_series, skills
from infra.lender.forecast import Forecaster
from infra.lender.history import LoadHistory

HOUR_S = 3_600.0
DAYS = [0.5 + 0.4 * math.sin(2 * math.pi * hour / 24) for hour in range(24)] * 6


class Oracle:
    """Forecasts loads that are known."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        return [DAYS[(history.last + 1 + step) % 24] for step in range(steps)]


def untrained(_history: LoadHistory, _until: int) -> Forecaster | None:
    return None


def test_untrained_forecaster_has_no_skill() -> None:
    row = skills(generated_series(seed=1), Latest(untrained))
    assert row["lstm_skill"] == row["lstm_skill_p95"] == 0
    assert row["intervals"] == len(generated_series(seed=1).loads) / 2


def test_repeating_load_is_foreseen() -> None:
    row = skills(LoadSeries("days", HOUR_S, DAYS), Latest(lambda _history, _until: Oracle()))
    assert row["lstm_skill"] == pytest.approx(1)
    assert float(row["seasonal_skill"] or 0) > 0.9
    assert float(row["selection_skill"] or 0) > 0.9
