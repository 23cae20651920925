"""The selection of a forecaster, by the errors of each on the latest loads."""

import random

import pytest

from infra.lender.forecast import LastValue, SeasonalNaive, Selection
from infra.lender.history import LoadHistory
from tests.infra.lender.loads import INTERVAL_S, PER_DAY, START_S, history, saw_tooth

STEPS = 5


class Always:
    """A forecaster with one forecast for all intervals."""

    def __init__(self, load: float) -> None:
        self.load = load

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        return [self.load] * steps


def selecting(
    near: float, far: float, trained: float | None = None, evaluated_s: float = 86_400.0
) -> Selection:
    """Return the selection among a first forecaster, a last one, and perhaps a trained one, by the errors of
    a day."""
    train = None if trained is None else lambda _past, _until: Always(trained)
    standing = {"first": Always(near), "last": Always(far)}
    return Selection(train, evaluated_s=evaluated_s, standing=standing)


def run(selection: Selection, loads: list[float]) -> LoadHistory:
    past = LoadHistory(INTERVAL_S)
    for index, load in enumerate(loads):
        past.add(START_S + index * INTERVAL_S, load)
        selection.forecast(past, STEPS)
    return past


def test_without_errors_the_defaults_are_used() -> None:
    selection = selecting(0.3, 0.6)
    past = run(selection, [0.5] * 10)
    assert selection.forecast(past, STEPS) == [0.3] * 3 + [0.6] * 2
    assert selection.comparison.used == "first"


def test_smallest_error_is_used() -> None:
    selection = selecting(0.3, 0.6)
    past = run(selection, [0.5] * PER_DAY)
    assert selection.forecast(past, STEPS) == [0.6] * STEPS
    assert selection.comparison.errors == pytest.approx({"first": 0.2, "last": 0.1})


def test_of_equal_errors_the_first_is_used() -> None:
    selection = selecting(0.5, 0.5)
    run(selection, [0.6] * PER_DAY)
    assert selection.comparison.used == "first"


def test_near_and_far_are_selected_apart() -> None:
    """A load of four intervals up and four down: the next is like the present, the fourth after is not."""

    class Opposite:
        def forecast(self, history: LoadHistory, steps: int) -> list[float]:
            return [1.0 - LastValue().forecast(history, 1)[0]] * steps

    selection = Selection(standing={"last_value": LastValue(), "opposite": Opposite()}, trained_steps=1)
    past = LoadHistory(INTERVAL_S)
    for index in range(2 * PER_DAY):
        past.add(START_S + index * INTERVAL_S, 0.2 if index // 4 % 2 else 0.8)
        forecast = selection.forecast(past, 4)
    present = LastValue().forecast(past, 1)[0]
    assert forecast == pytest.approx([present, *[1 - present] * 3])


def test_trained_forecaster_is_used_for_near_intervals() -> None:
    selection = selecting(0.3, 0.6, trained=0.5)
    past = run(selection, [0.5] * (2 * PER_DAY))
    assert selection.comparison.used == "lstm"
    assert selection.forecast(past, STEPS) == [0.5] * 3 + [0.6] * 2


def test_trained_forecaster_is_left_once_it_is_worse() -> None:
    selection = selecting(0.3, 0.6, trained=0.5)
    past = run(selection, [0.5] * (2 * PER_DAY) + [0.3] * (PER_DAY // 2 + 3))
    assert selection.comparison.used == "first"
    assert selection.forecast(past, 1) == [0.3]


def test_last_value_wins_on_random_walk() -> None:
    rng = random.Random(1)
    loads = [0.5]
    for _ in range(4 * PER_DAY):
        loads.append(min(max(loads[-1] + rng.gauss(0.0, 0.01), 0.05), 0.95))
    selection = Selection()
    run(selection, loads)
    assert selection.comparison.used == "last_value"
    assert selection.comparison.skill == 0.0


def test_season_wins_on_days_that_repeat() -> None:
    selection = Selection()
    run(selection, saw_tooth(4, seed=1, noise=0.002))
    assert selection.comparison.used == "seasonal"
    skill = selection.comparison.skill
    assert skill is not None
    assert 0 < skill < 1


def test_restart_evaluates_the_days_before() -> None:
    past = history(saw_tooth(10, seed=1))
    selection = Selection()
    selection.forecast(past, STEPS)
    assert selection.comparison.intervals == 3 * PER_DAY
    assert selection.comparison.used == "seasonal"


def test_first_training_leaves_out_evaluated_days() -> None:
    asked: list[tuple[int, int]] = []

    def trainer(past: LoadHistory, until: int) -> Always:
        asked.append((past.last, until))
        return Always(0.5)

    selection = Selection(trainer)
    past = history([*saw_tooth(3, seed=1), 0.2])
    selection.forecast(past, 1)
    assert asked == [(past.last, past.last - PER_DAY - 1), (past.last, past.last - 1)]
    assert selection.comparison.intervals == PER_DAY
    assert selection.comparison.errors.keys() == {"last_value", "seasonal", "lstm"}


def test_too_short_history_is_trained_on_later() -> None:
    selection = Selection(lambda _past, _until: None, standing={"a": Always(0.4), "b": Always(0.5)})
    run(selection, [0.5] * 600)
    assert selection.comparison.errors.keys() == {"a", "b"}


def test_training_is_repeated_on_schedule() -> None:
    times: list[int] = []
    selection = Selection(lambda past, _until: times.append(past.last), retrain_s=3_600.0)  # type: ignore[func-returns-value]
    past = run(selection, [0.5] * 40)
    first = past.last - 39
    assert sorted({time - first for time in times}) == [0, 12, 24, 36]


def test_gaps_are_not_compared() -> None:
    selection = selecting(0.3, 0.6, evaluated_s=50 * INTERVAL_S)
    past = LoadHistory(INTERVAL_S)
    for index in [*range(60), *range(80, 90)]:
        past.add(START_S + index * INTERVAL_S, 0.5)
        selection.forecast(past, 1)
    assert selection.comparison.errors == pytest.approx({"first": 0.2, "last": 0.1})


def test_season_and_last_value_are_known_by_name() -> None:
    selection = Selection()
    run(selection, [0.5] * PER_DAY)
    assert selection.comparison.errors == {"last_value": 0.0, "seasonal": 0.0}
    assert selection.comparison.skill is None, "nothing is better than no error"
    assert SeasonalNaive().forecast(history([0.5]), 1) == [0.5]
