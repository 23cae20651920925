"""The LSTM learns from histories, the same each time; and what it is used for depends on how well it does."""

import random

import pytest

pytest.importorskip("torch", reason="torch is in the extra `executors`")
import torch

from infra.lender.forecast import SeasonalNaive, Selection
from infra.lender.history import LoadHistory
from infra.lender.lstm import LAYERS, WINDOW, LoadNetwork, recent_loads, train
from infra.workloads.elastic.loads import generate_load
from tests.infra.lender.loads import INTERVAL_S, PER_DAY, START_S, LastValue, history, saw_tooth
from tests.infra.lender.test_forecasts import one_step_error


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Always:
    """A forecaster with the same forecast for every interval."""

    def __init__(self, load: float) -> None:
        self.load = load

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        return [self.load] * steps


def run(selection: Selection, loads: list[float]) -> LoadHistory:
    past = LoadHistory(INTERVAL_S)
    for index, load in enumerate(loads):
        past.add(START_S + index * INTERVAL_S, load)
        selection.forecast(past, 1)
    return past


def test_the_network_is_that_of_the_thesis():
    network = LoadNetwork()
    assert (WINDOW, LAYERS, network.lstm.num_layers) == (10, 2, 2)
    assert network(torch.zeros(3, WINDOW)).shape == (3,)


@pytest.mark.long
def test_lstm_beats_last_value_on_daily_swing():
    """The changes of the bursts have an autocorrelation of 0.5: a forecast from the swing and that
    correlation errs by 1 - sqrt(0.75) = 13 % less than the last value, and a quarter of that must be
    reached."""
    loads = [sample.load for sample in generate_load(seed=5, days=6)]
    past = history(loads)
    trained = train(past, until=past.last - PER_DAY)
    assert trained is not None
    error, of_last = (one_step_error(one, loads, 5 * PER_DAY) for one in (trained, LastValue()))
    assert error < 0.966 * of_last


def test_seed_determines_forecasts_without_global_random_state():
    past = history(saw_tooth(1, seed=1))
    state = torch.random.get_rng_state()
    first, again = (train(past, seed=7, steps=20) for _ in range(2))
    other = train(past, seed=8, steps=20)
    assert first.forecast(past, 5) == again.forecast(past, 5) != other.forecast(past, 5)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_history_that_is_too_short_teaches_nothing():
    assert train(history([0.5] * 50)) is None


def test_history_with_gaps_is_used_between_them():
    loads = saw_tooth(2, seed=1)
    gappy = [None if 100 <= index < 140 or 300 <= index < 305 else load for index, load in enumerate(loads)]
    trained = train(history(gappy), steps=20)
    assert all(0 <= load <= 1 for load in trained.forecast(history(gappy), 20))


@pytest.mark.slow
def test_a_constant_history_gives_a_constant_forecast():
    past = history([0.5] * 200)
    assert train(past, steps=200).forecast(past, 3) == pytest.approx([0.5] * 3, abs=0.01)


def test_unknown_loads_of_window_repeat_earlier_ones():
    assert recent_loads(history([0.1, 0.2, *[None] * 5, 0.7])) == [0.1] * 3 + [0.2] * 6 + [0.7]
    assert recent_loads(history([0.3])) == [0.3] * WINDOW


def test_while_nothing_is_trained_the_seasonal_forecast_counts():
    selection = Selection(Always(0.4), lambda _past, _until: None)
    past = run(selection, [0.5] * 600)
    assert selection.forecast(past, 2) == [0.4, 0.4]
    assert selection.comparison.trained_error is None


def test_better_forecaster_of_last_day_is_used():
    selection = Selection(Always(0.3), lambda _past, _until: Always(0.5), trained_steps=3)
    past = run(selection, [0.5] * (2 * PER_DAY))
    compared = selection.comparison
    assert compared.uses_trained
    assert (compared.trained_error, compared.seasonal_error) == pytest.approx((0.0, 0.2))
    assert selection.forecast(past, 5) == [0.5, 0.5, 0.5, 0.3, 0.3]


def test_lstm_falls_back_once_it_is_worse():
    selection = Selection(Always(0.3), lambda _past, _until: Always(0.5))
    past = run(selection, [0.5] * (2 * PER_DAY) + [0.3] * (PER_DAY // 2 + 3))
    assert not selection.comparison.uses_trained
    assert selection.forecast(past, 1) == [0.3]


def test_as_good_is_not_better():
    selection = Selection(Always(0.5), lambda _past, _until: Always(0.5))
    run(selection, [0.6] * (2 * PER_DAY))
    assert not selection.comparison.uses_trained


def test_first_use_follows_a_judged_day():
    asked: list[tuple[int, int]] = []

    def trainer(past, until):
        asked.append((past.last, until))
        return Always(0.5)

    selection = Selection(Always(0.3), trainer)
    past = history([0.5] * (3 * PER_DAY))
    selection.forecast(past, 1)
    assert asked == [(past.last, past.last - PER_DAY - 1), (past.last, past.last - 1)]
    assert selection.comparison.intervals == PER_DAY
    assert selection.comparison.uses_trained


def test_lstm_is_retrained_on_schedule():
    times: list[int] = []
    selection = Selection(Always(0.3), lambda past, _until: times.append(past.last), retrain_s=3_600.0)
    past = run(selection, [0.5] * 40)
    first = past.last - 39
    assert sorted({time - first for time in times}) == [0, 12, 24, 36]


def test_gaps_are_not_compared():
    selection = Selection(Always(0.3), lambda _past, _until: Always(0.5), evaluated_s=50 * INTERVAL_S)
    past = LoadHistory(INTERVAL_S)
    for index in [*range(60), *range(80, 90)]:
        past.add(START_S + index * INTERVAL_S, 0.5)
        selection.forecast(past, 1)
    assert selection.comparison.seasonal_error == pytest.approx(0.2)


@pytest.mark.slow
def test_seasonal_forecast_stays_on_noise():
    """The next burst does not follow from earlier ones, and the season is exact."""
    rng = random.Random(2)
    loads = [
        0.5 + 0.4 * ((index * 7_919) % PER_DAY) / PER_DAY + rng.gauss(0, 0.001)
        for index in range(3 * PER_DAY)
    ]
    past = history(loads)
    selection = Selection(SeasonalNaive(), lambda past, until: train(past, until, steps=100))
    selection.forecast(past, 1)
    assert selection.comparison.intervals == PER_DAY
    assert not selection.comparison.uses_trained
