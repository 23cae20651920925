"""Measured merges, the visible ones, and the estimator's figures on the real curves."""

import math

import pytest

from bench.figures import Result
from bench.merging.estimates import (
    KnownMerge,
    known_merges,
    known_tasks,
    measure_estimates,
    read_backbone,
    visible,
)
from bench.merging.measured import read_profiles, read_workload
from solvers.merging.pairs import Candidate
from tests.support.profiles import FILES, SHARED, curve, write_profiles

HERE = pytest.mark.skipif(not SHARED.exists(), reason="the measured profiles are not here")


def truth(folder):
    profiles = read_profiles(write_profiles(folder), "tiny", "X1")
    tasks = known_tasks(profiles, read_workload(folder / "workload.csv"))
    return tasks, known_merges(profiles, tasks)


def test_tasks_have_epochs_to_their_target(tmp_path):
    tasks, _ = truth(tmp_path)
    assert list(tasks) == ["blue", "red"]
    red = tasks["red"]
    assert (red.samples, red.batch_size, red.epochs) == (100, 8, 3)
    assert tasks["blue"].epochs == 2


def test_gains_compare_the_best_metrics(tmp_path):
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
    ("old", "new", "message"),
    [
        ("0.8000004\n", "0.9\n", "not met by its own curve"),
        ("tiny@blue,2,16,1e-3,1,0.7", "tiny@grey,2,16,1e-3,1,-1.6", "'grey' are unknown"),
        ("tiny@blue,2,16,1e-3,1,0.7", "tiny@red,2,8,1e-4,2,0.7", "differs from tiny@red-0"),
        ("tiny@blue,2,16,1e-3,1,0.7", "tiny@blue,2,16,1e-3,9,0.7", "no curve of 'blue'"),
    ],
)
def test_uncovered_workload_is_refused(tmp_path, old, new, message):
    profiles = read_profiles(write_profiles(tmp_path), "tiny", "X1")
    (tmp_path / "workload.csv").write_text(FILES["workload.csv"].replace(old, new))
    with pytest.raises((ValueError, LookupError), match=message):
        known_tasks(profiles, read_workload(tmp_path / "workload.csv"))


def every_merge(tasks: str) -> list[KnownMerge]:
    """Return the merges of tasks with one letter each."""
    return [
        KnownMerge(Candidate(a, b, mode, 100, 100), 0.01, 3, 5)
        for mode in ("temporal", "spatial")
        for a in tasks
        for b in tasks
        if a != b
    ]


def test_no_outcome_of_the_same_pair_is_visible():
    merges = every_merge("abcd")
    for asked in merges:
        assert all(seen.tasks != asked.tasks for seen in visible(merges, asked))
        assert len(visible(merges, asked)) == len(merges) - 4


@pytest.fixture(scope="module")
def result() -> Result:
    return measure_estimates(SHARED, ("roberta-base", "vit"))


@HERE
@pytest.mark.long
def test_merges_of_the_measured_curves():
    roberta, vit = read_backbone(SHARED, "roberta-base"), read_backbone(SHARED, "vit")
    temporal = [m for m in roberta.merges if m.candidate.mode == "temporal"]
    assert len(temporal) == 70
    assert sum(m.epochs is not None and m.epochs < m.own_epochs for m in temporal) == 44
    assert sum(m.epochs is None for m in temporal) == 13
    temporal = [m for m in vit.merges if m.candidate.mode == "temporal"]
    assert (len(temporal), sum(m.epochs is not None for m in temporal)) == (72, 5)
    for backbone in (roberta, vit):
        for merge in backbone.merges:
            assert (merge.epochs is not None) == (merge.gain >= 0)


@HERE
@pytest.mark.long
def test_goals_are_met_on_held_back_pairs(result):
    figures = {m.name: m.value for m in result.measurements}
    assert figures["gain_sign_pct"] >= 90
    assert figures["gain_mape_pct"] <= 18
    assert figures["iterations_error_pct"] <= 11


@HERE
@pytest.mark.long
def test_profile_run_shows_a_task_of_one_epoch(result):
    (table,) = (table for table in result.tables if table.name == "iterations")
    rows = {row["task"]: row for row in table.rows}
    wnli = rows["wnli"]
    assert (wnli["accuracy_after_epoch"], wnli["forecast_epochs"], wnli["epochs"]) == (0.56338, 1.0, 1)
    assert rows["rte"]["accuracy_after_epoch"] is None, "its epoch has 39 iterations"


@HERE
@pytest.mark.long
def test_gain_forecasts_beat_a_constant(result):
    (table,) = (table for table in result.tables if table.name == "gains")
    of_all = [row for row in table.rows if row["part"] == "all"]
    assert all(row["gain_error_pct"] < 100 and row["pearson_r"] > 0.5 for row in of_all)


@HERE
@pytest.mark.long
def test_figures_have_runs_and_notes(result):
    for measurement in result.measurements:
        assert measurement.runs >= 17, measurement
        assert measurement.note


def test_negative_loss_is_estimated_like_an_accuracy(tmp_path):
    write_profiles(tmp_path, _with_a_loss())
    for path in tmp_path.glob("tiny_X1_*"):
        path.rename(path.with_name(path.name.replace("X1", "V100")))
    (tmp_path / "workloads").mkdir()
    job = "tiny@{0}-0,{1},tiny@{0},1,8,1e-3,1,{2}\n"
    rows = ("red", 1, 0.8), ("blue", 2, 0.7), ("grey", 3, -1.5), ("black", 4, -1.2)
    (tmp_path / "workloads" / "FM-1-tiny.csv").write_text(
        FILES["workload.csv"].splitlines()[0] + "\n" + "".join(job.format(*row) for row in rows)
    )
    (tmp_path / "samples.csv").write_text("task,samples\nred,100\nblue,200\ngrey,300\nblack,400\n")
    tasks = read_backbone(tmp_path, "tiny").tasks
    assert tasks["grey"].target == pytest.approx(math.exp(-1.5))
    found = measure_estimates(tmp_path, ("tiny",))
    assert {"gain_sign_pct", "iterations_error_pct"} <= {figure.name for figure in found.measurements}
    assert all(math.isfinite(figure.value) for figure in found.measurements)


def _with_a_loss():
    names = ("red", "blue", "grey", "black")
    curves = {
        "red": curve(0.5, 0.7, 0.8),
        "blue": curve(0.5, 0.6, 0.7),
        "grey": curve(-2.0, -1.7, -1.5, metric="eval_loss"),
        "black": curve(-1.9, -1.4, -1.2, metric="eval_loss"),
    }
    return {
        "single": {name: {"1e-3": {"1": of}} for name, of in curves.items()},
        "temporal": {f"{a},{b}": curves[b] for a in names for b in names if a != b},
        "spatial": {
            f"{a},{b}": {f"{name}_{key}": value for name in (a, b) for key, value in curves[name].items()}
            for index, a in enumerate(names)
            for b in names[index + 1 :]
        },
    }
