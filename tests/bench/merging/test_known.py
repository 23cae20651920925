"""The truth about pairs, and what an estimator may see of it."""

import pytest

from bench.merging.known import KnownMerge, foretold_gains, known_merges, known_tasks, visible
from bench.merging.measured import read_profiles, read_workload
from solvers.merging.pairs import Candidate, GainOutcome, forecast_gains
from tests.support.profiles import FILES, write_profiles


def truth(folder):
    profiles = read_profiles(write_profiles(folder), "tiny", "X1")
    tasks = known_tasks(profiles, read_workload(folder / "workload.csv"))
    return tasks, known_merges(profiles, tasks)


def test_tasks_have_their_own_curve_and_the_epochs_to_their_target(tmp_path):
    tasks, _ = truth(tmp_path)
    assert list(tasks) == ["blue", "red"]
    red = tasks["red"]
    assert (red.samples, red.batch_size, red.epochs) == (100, 8, 3)
    assert tasks["blue"].epochs == 2


def test_gains_are_of_the_best_metrics_and_epochs_to_the_target_of_the_job_alone(tmp_path):
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
def test_a_workload_that_the_curves_do_not_cover_is_refused(tmp_path, old, new, says):
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


def test_a_merge_is_foretold_from_all_outcomes_but_those_of_its_pair():
    merges = every_merge("abcd")
    for asked in merges:
        assert all(seen.tasks != asked.tasks for seen in visible(merges, asked))
        assert len(visible(merges, asked)) == len(merges) - 4


def test_each_merge_is_foretold_from_exactly_what_it_may_see():
    merges = every_merge("abcd")
    for merge, told in zip(merges, foretold_gains(merges), strict=True):
        seen = [GainOutcome(other.candidate, other.gain) for other in visible(merges, merge)]
        (alone,) = forecast_gains(seen, [merge.candidate])
        assert told == pytest.approx(alone, abs=1e-9)
