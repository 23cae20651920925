"""The whole benchmark on a tiny setting: every part, rows that serve again, and what it leaves behind."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.auction.comparison import OURS, comparison_table, trials_of
from bench.auction.parts import DAYS, SUITE
from bench.auction.scope import (
    EVERYDAY_LOADS,
    AuctionScope,
    Everyday,
    EverydayLoad,
    Figure,
    Point,
    full,
    quick,
)
from bench.auction.trials import AuctionTrial
from bench.figures import Conditions, Measurement, Table
from bench.goals import goals
from bench.output import report, write_artefacts
from bench.suite import SuiteRun
from tests.bench.auction.rows import TINY, no_runs

POINT = Point("tiny", TINY)
FIGURE = Figure(8, "workload", (POINT,), skipped=("a point: it is not here",))
SEEDS = (0, 1)


def conditions(folder: Path) -> Conditions:
    return Conditions(True, 0, folder, 1, Console(file=io.StringIO()))


def comparison(folder: Path) -> Table:
    rows = no_runs(folder)
    rows.complete(trials_of([TINY], SEEDS), 1, Console(quiet=True))
    return comparison_table(FIGURE, SEEDS, rows)


@pytest.mark.long
def test_the_same_seeds_make_the_same_table(tmp_path):
    assert comparison(tmp_path / "one") == comparison(tmp_path / "other")


@pytest.mark.long
def test_killed_run_resumes(tmp_path):
    whole = comparison(tmp_path)
    kept, *lost = (tmp_path / "runs").iterdir()
    for path in lost:
        path.unlink()
    written = kept.stat().st_mtime_ns
    assert comparison(tmp_path) == whole
    assert kept.stat().st_mtime_ns == written
    assert len(list((tmp_path / "runs").iterdir())) == 1 + len(lost)


@pytest.mark.long
def test_parallel_processes_give_result_of_one(tmp_path):
    trials = [AuctionTrial(TINY, seed, name) for seed in SEEDS for name in (OURS, "eft")]
    welfares = []
    for jobs in (1, 2):
        rows = no_runs(tmp_path / str(jobs))
        rows.complete(trials, jobs, Console(quiet=True))
        welfares.append([rows.of(trial)["welfare_micros"] for trial in trials])
    assert welfares[0] == welfares[1]


@pytest.mark.long
def test_every_part_leaves_its_tables(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.auction.misreports.QUICK_WORLDS", 4)
    seeds = SEEDS[:1]
    scope = AuctionScope(
        seeds=seeds,
        comparisons=(FIGURE,),
        small=Figure(12, "size", (POINT,)),
        small_loaded=Figure(12, "size", (POINT,)),
        runtime=(POINT,),
        everyday=Everyday((EverydayLoad(4.0, 1.75, TINY),), seeds),
        high=TINY,
    )
    measurements: list[Measurement] = []
    tables: list[Table] = []
    asked = conditions(tmp_path)
    bench = SuiteRun(asked, scope, DAYS)
    for part in SUITE.due(asked):
        result = part.measure(bench)
        measurements += result.measurements
        tables += result.tables
    assert {measured.name for measured in measurements} == set(goals("auction"))
    document = report("auction", measurements, quick=True, seed=0)
    write_artefacts(tmp_path, document, tables)
    assert json.loads((tmp_path / "auction.json").read_text()) == document
    assert [table.name for table in tables] == [
        "figure_13",
        "profile_error",
        "figure_12_ratio",
        "figure_12_ratio_loaded",
        "figure_8",
        "misreports",
        "everyday",
    ]
    for table in tables:
        assert (tmp_path / f"{table.name}.csv").read_text().startswith(",".join(table.columns[:2]))
    assert "Figure 8 lacks a point: it is not here" in asked.console.file.getvalue()


@pytest.mark.parametrize("scope", [quick(0), full(0, Path("nowhere"))])
def test_settings_of_part_have_distinct_names(scope):
    figures = (*scope.comparisons, scope.small, scope.small_loaded)
    settings = {point.setting for figure in figures for point in figure.points}
    settings |= {scope.high}
    settings |= {load.setting for load in scope.everyday.loads}
    assert len({AuctionTrial(setting, 0, OURS).setting_name for setting in settings}) == len(settings)
    assert scope.high in settings


def test_everyday_has_every_load_at_each_deviation(tmp_path):
    every = full(5, tmp_path).everyday
    assert [(load.deviation, load.load) for load in every.loads] == [
        (deviation, load) for deviation in (1.0, 1.75) for load in EVERYDAY_LOADS
    ]
    assert every.seeds == (5, 6, 7)
