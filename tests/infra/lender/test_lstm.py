"""The LSTM: what it learns from histories, the same each time."""

import pytest

pytest.importorskip("torch", reason="torch is in the extra `executors`")
import torch

from infra.lender.forecast import LastValue
from infra.lender.lstm import CONTEXT, LAYERS, WINDOW, LoadNetwork, recent_loads, train
from infra.workloads.elastic.loads import generate_load
from tests.infra.lender.loads import PER_DAY, history, saw_tooth
from tests.infra.lender.test_forecasts import one_step_error


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_network_is_that_of_the_thesis():
    network = LoadNetwork()
    assert (WINDOW, LAYERS, network.lstm.num_layers) == (10, 2, 2)
    assert network(torch.zeros(3, WINDOW), torch.zeros(3, CONTEXT)).shape == (3,)


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
    states = [one.network.head.weight.tolist() for one in (first, again, other)]
    assert states[0] == states[1] != states[2]
    assert first.forecast(past, 5) == again.forecast(past, 5)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_history_that_is_too_short_changes_nothing():
    assert train(history([0.5] * 61)) is None
    assert train(history([0.5] * 62), steps=1) is not None


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
    assert recent_loads(history([0.1, 0.2, *[None] * 5, 0.7])) == [0.1] * 4 + [0.2] * 6 + [0.7]
    assert recent_loads(history([0.3])) == [0.3] * (WINDOW + 1)


@pytest.mark.slow
def test_noise_is_forecast_as_the_last_value() -> None:
    """The changes of a random walk that are to come do not depend on those before."""
    loads = [0.5]
    noise = torch.randn(2 * PER_DAY, generator=torch.Generator().manual_seed(3)).tolist()
    for change in noise:
        loads.append(min(max(loads[-1] + 0.01 * change, 0.0), 1.0))
    past = history(loads)
    trained = train(past, steps=200)
    assert trained is not None
    assert trained.weight < 0.5
    assert abs(trained.forecast(past, 1)[0] - loads[-1]) < 0.005


@pytest.mark.slow
def test_days_that_repeat_are_learnt() -> None:
    loads = saw_tooth(4, seed=1, noise=0.002)
    past = history(loads)
    trained = train(past, until=past.last - PER_DAY)
    assert trained is not None
    error, of_last = (one_step_error(one, loads, 3 * PER_DAY) for one in (trained, LastValue()))
    assert error < 0.8 * of_last
