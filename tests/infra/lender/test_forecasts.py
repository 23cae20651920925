"""Forecasters compute the next load from a history."""

import math

import pytest

from infra.lender.forecast import LastValue, SeasonalNaive
from tests.infra.lender.loads import PER_DAY, history, saw_tooth


def one_step_error(forecaster, loads, first):
    """Root mean squared error of forecasts of each interval from `first` on, by what was known before it."""
    past = history(loads)
    start = past.last - len(loads) + 1
    errors = [
        forecaster.forecast(past.up_to(start + index - 1), 1)[0] - loads[index]
        for index in range(first, len(loads))
    ]
    return math.sqrt(math.fsum(error * error for error in errors) / len(errors))


def test_forecast_of_short_history_is_last_value():
    assert SeasonalNaive().forecast(history(saw_tooth(1)[:200]), 2) == [saw_tooth(1)[199]] * 2


def test_day_like_former_days_is_forecast():
    days = saw_tooth(3)
    forecast = SeasonalNaive().forecast(history(days[: 2 * PER_DAY + 100]), 50)
    assert forecast == pytest.approx(days[2 * PER_DAY + 100 : 2 * PER_DAY + 150])


def test_shifted_day_is_forecast_with_fading_level():
    days = saw_tooth(2)
    past = [*days, *(load + 0.1 for load in saw_tooth(1)[:100])]
    forecast = SeasonalNaive(persistence=0.9).forecast(history(past), 40)
    distances = [load - day for load, day in zip(forecast, days[100:], strict=False)]
    assert distances[0] == pytest.approx(0.09)
    assert distances[9] == pytest.approx(0.1 * 0.9**10)
    assert 0 < distances[39] < 0.002


def test_a_burst_fades_faster_than_a_level():
    days = saw_tooth(2)
    past = [*days, *saw_tooth(1)[:99], saw_tooth(1)[99] + 0.24]
    forecast = SeasonalNaive(persistence=1.0, level_intervals=6).forecast(history(past), 2)
    distances = [load - day for load, day in zip(forecast, days[100:], strict=False)]
    assert distances == pytest.approx([0.04 + 0.1, 0.04 + 0.05])


def test_a_forecast_is_a_load_whatever_the_level():
    high = [0.9] * PER_DAY + [0.05] * 10
    assert min(SeasonalNaive().forecast(history([0.1] * PER_DAY + [0.0] * 5), 20)) >= 0.0
    rising = [0.3] * PER_DAY + [1.0] * 10
    assert max(SeasonalNaive().forecast(history([*high, *rising]), 400)) <= 1.0


def test_days_without_data_are_passed_over():
    first, lost = saw_tooth(1), [None] * PER_DAY
    past = [*first, *lost, *first[:100]]
    assert SeasonalNaive().forecast(history(past), 5) == pytest.approx(first[100:105])


def test_forecast_beyond_a_day_uses_latest_day():
    days = saw_tooth(2)
    forecast = SeasonalNaive(persistence=0.0).forecast(history(days), PER_DAY + 5)
    assert forecast[PER_DAY:] == pytest.approx(days[:5])


def test_seasonal_forecast_beats_last_value_on_repeating_days():
    loads = saw_tooth(5, seed=3)
    seasonal, last = (one_step_error(one, loads, 4 * PER_DAY) for one in (SeasonalNaive(), LastValue()))
    assert seasonal < last
