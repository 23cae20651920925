"""The truth about pairs, and what an estimator may see of it."""

import pytest

from bench.merging.known import KnownMerge, foretold_gains, known_merges, known_tasks, visible
from bench.merging.measured import read_profiles, read_workload
from solvers.merging.gain import GainForecast, GainOutcome
from solvers.merging.pairs import Candidate
from tests.support.profiles import FILES, write_profiles


def truth(folder):
    profiles = read_profiles(write_profiles(folder), "tiny", "X1")
    tasks = known_tasks(profiles, read_workload(folder / "workload.csv"))
    return tasks, known_merges(profiles, tasks)


def test_tasks_have_own_curve_and_epochs(tmp_path):
    tasks, _ = truth(tmp_path)
    assert list(tasks) == ["blue", "red"]
    red = tasks["red"]
    assert (red.samples, red.batch_size, red.epochs) == (100, 8, 3)
    assert tasks["blue"].epochs == 2


def test_gains_use_best_metric_and_solo_target(tmp_path):
    _, merges = truth(tmp_path)
    found = {(m.candidate.donor, m.candidate.receiver, m.candidate.mode): m for m in merges}
    assert set(found) == {
        (a, b, mode) for a, b in (("red", "blue"), ("blue", "red")) for mode in ("temporal", "spatial")
    }
    helped = found["red", "blue", "temporal"]
    assert helped.gain == pytest.approx(0.85 / 0.8 - 1)
    assert (helped.epochs, helped.own_epochs) == (1, 2)
    harmed = found["blue", "red", "temporal"]
    assert harmed.gain == pytest.approx(0.7 / 0.8 - 1)
    assert harmed.epochs is None
    assert found["blue", "red", "spatial"].epochs == 2
    assert found["red", "blue", "spatial"].gain == pytest.approx(0.72 / 0.8 - 1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("0.8000004\n", "0.9\n", "not met by its own curve"),
        ("tiny@blue,2,16,1e-3,1,0.7", "tiny@grey,2,16,1e-3,1,-1.6", "'grey' are unknown"),
        ("tiny@blue,2,16,1e-3,1,0.7", "tiny@red,2,8,1e-4,2,0.7", "differs from tiny@red-0"),
        ("tiny@blue,2,16,1e-3,1,0.7", "tiny@blue,2,16,1e-3,9,0.7", "no curve of 'blue'"),
    ],
)
def test_workload_beyond_curves_is_refused(tmp_path, old, new, says):
    profiles = read_profiles(write_profiles(tmp_path), "tiny", "X1")
    (tmp_path / "workload.csv").write_text(FILES["workload.csv"].replace(old, new))
    with pytest.raises((ValueError, LookupError), match=says):
        known_tasks(profiles, read_workload(tmp_path / "workload.csv"))


def every_merge(tasks: str) -> list[KnownMerge]:
    """Of tasks with one letter each."""
    return [
        KnownMerge(Candidate(a, b, mode, 100, 100), 0.01, 3, 5)
        for mode in ("temporal", "spatial")
        for a in tasks
        for b in tasks
        if a != b
    ]


def test_merge_is_forecast_without_its_own_pair():
    merges = every_merge("abcd")
    for asked in merges:
        assert all(seen.tasks != asked.tasks for seen in visible(merges, asked))
        assert len(visible(merges, asked)) == len(merges) - 4


class Recorder:
    """A model that answers with how many outcomes it saw."""

    def forecast(self, outcomes: list[GainOutcome], asked: list[Candidate]) -> list[GainForecast]:
        return [GainForecast(float(len(outcomes)), 0.5) for _ in asked]


def test_merge_forecast_uses_exactly_visible_outcomes():
    merges = every_merge("abcd")
    for merge, told in zip(merges, foretold_gains(merges, Recorder()), strict=True):
        assert told.gain == len(visible(merges, merge))
