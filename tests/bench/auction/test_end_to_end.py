"""The whole benchmark on a tiny setting: every part, rows that serve again, and what it leaves behind."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.auction.comparison import OURS, comparison_table, trials_of
from bench.auction.everyday import DRAWN, EVERYDAY_LOADS, HIGH_LOAD, WORKING_DAY, Everyday, EverydayLoad
from bench.auction.parts import DAYS, SUITE
from bench.auction.runs.trials import AuctionTrial
from bench.auction.scope import AuctionScope, full, quick
from bench.figures import Conditions, Measurement, Table
from bench.goals import goals
from bench.report import report, write_artefacts
from bench.suite import SuiteRun
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.figures import TRACES, Figure, Point
from tests.bench.auction.rows import TINY, no_runs

POINT = Point("tiny", TINY)
FIGURE = Figure(8, "workload", (POINT,), skipped=("a point: it is not here",))
SEEDS = (0, 1)


def conditions(folder: Path) -> Conditions:
    return Conditions(
        True, 0, folder, jobs=1, traces=folder, trace_files=(), console=Console(file=io.StringIO())
    )


def comparison(folder: Path) -> Table:
    rows = no_runs(folder)
    rows.complete(trials_of([TINY], SEEDS), 1, Console(quiet=True))
    return comparison_table("figure_8", FIGURE.axis, FIGURE.points, SEEDS, rows, {})


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
def test_parts_leave_tables_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.auction.misreports.QUICK_WORLDS", 4)
    seeds = SEEDS[:1]
    scope = AuctionScope(
        seeds=seeds,
        comparisons=(FIGURE,),
        small=Figure(12, "size", (POINT,)),
        small_loaded=Figure(12, "size", (POINT,)),
        runtime=(POINT,),
        everyday=Everyday(
            (EverydayLoad(DRAWN, HIGH_LOAD, 1.75, TINY),), seeds, skipped=("a trace: it is not here",)
        ),
        working_days=Everyday(
            (EverydayLoad(WORKING_DAY, HIGH_LOAD, 1.75, replace(TINY, night_part=0.5)),), seeds
        ),
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
        "figure_12_ratio",
        "figure_12_ratio_loaded",
        "figure_8",
        "misreports",
        "everyday",
        "working_days",
    ]
    for table in tables:
        assert (tmp_path / f"{table.name}.csv").read_text().startswith(",".join(table.columns[:2]))
        assert (tmp_path / f"{table.name}.png").read_bytes().startswith(b"\x89PNG")
    said = asked.console.file.getvalue()
    assert "Figure 8 lacks a point: it is not here" in said
    assert "everyday lacks a trace: it is not here" in said


@pytest.mark.parametrize("scope", [quick(0), full(0, Path("nowhere"))])
def test_settings_of_part_have_distinct_names(scope):
    figures = (*scope.comparisons, scope.small, scope.small_loaded)
    settings = {point.setting for figure in figures for point in figure.points}
    settings |= {scope.high}
    settings |= {load.setting for load in (*scope.everyday.loads, *scope.working_days.loads)}
    assert len({AuctionTrial(setting, 0, OURS).setting_name for setting in settings}) == len(settings)
    assert scope.high in settings


def test_everyday_loads_include_all_traces(tmp_path):
    here = tmp_path / TRACES["ITP"]
    here.touch()
    mine = tmp_path / "mine.csv"
    every = full(5, tmp_path, [mine]).everyday
    arrivals = (DRAWN, "ITP", str(mine))
    assert [(load.arrivals, load.deviation, load.load) for load in every.loads] == [
        (name, deviation, load) for name in arrivals for deviation in (1.0, 1.75) for load in EVERYDAY_LOADS
    ]
    assert every.seeds == (5, 6, 7)
    assert every.skipped == (f"Philly: {tmp_path / TRACES['Philly']} is not here",)
    for load in every.loads:
        jobs = round(load.setting.arrivals_per_slot * load.setting.slots)
        path = {DRAWN: None, "ITP": here, str(mine): mine}[load.arrivals]
        assert load.setting.trace == (path and TraceArrivals(path, jobs))
    assert [load.arrivals for load in quick(5, [mine]).everyday.loads] == [DRAWN] * 2 + [str(mine)] * 2
