"""The whole benchmark on a tiny setting: every part, rows that serve again, and what it leaves behind."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.auction.comparison import OURS, comparison_table, trials_of
from bench.auction.growth import Axis
from bench.auction.parts import AuctionBench
from bench.auction.runs.pool import ROWS_FILE, Rows, run_missing
from bench.auction.runs.trial import Trial
from bench.auction.scope import Scope, full, quick
from bench.figures import Conditions, Measurement, Table
from bench.goals import goals
from bench.report import report, write_artefacts
from bench.workloads.figures import Figure, Point
from tests.bench.auction.rows import TINY

POINT = Point("tiny", TINY)
FIGURE = Figure(8, "workload", (POINT,), skipped=("a point: it is not here",))
SEEDS = (0, 1)


def conditions(folder: Path) -> Conditions:
    return Conditions(
        True, 0, folder, jobs=1, traces=folder, trace_files=(), console=Console(file=io.StringIO())
    )


def comparison(folder: Path) -> Table:
    rows = Rows(folder, "s")
    console = Console(quiet=True)
    run_missing(trials_of([TINY], SEEDS), rows, 1, console)
    return comparison_table("figure_8", FIGURE.axis, FIGURE.points, SEEDS, rows, {})


@pytest.mark.long
def test_the_same_seeds_make_the_same_table(tmp_path):
    assert comparison(tmp_path / "one") == comparison(tmp_path / "other")


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path):
    whole = comparison(tmp_path)
    path = tmp_path / ROWS_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:5])
    path.write_bytes(kept + lines[5][:-9])
    assert comparison(tmp_path) == whole
    assert path.read_bytes().startswith(kept)
    assert len(path.read_text().splitlines()) == len(lines)


@pytest.mark.long
def test_processes_beside_each_other_bring_what_one_brings(tmp_path):
    trials = [Trial(TINY, seed, name) for seed in SEEDS for name in (OURS, "eft")]
    welfares = []
    for jobs in (1, 2):
        rows = Rows(tmp_path / str(jobs), "s")
        run_missing(trials, rows, jobs, Console(quiet=True))
        welfares.append([rows.values(trial)["welfare_micros"] for trial in trials])
        assert [row.alone for row in map(rows.find, trials)] == [jobs == 1] * len(trials)
    assert welfares[0] == welfares[1]


def test_every_part_runs_and_leaves_its_tables_and_pictures(tmp_path):
    scope = Scope(
        seeds=SEEDS,
        comparisons=(FIGURE,),
        small=Figure(12, "size", (POINT,)),
        small_loaded=Figure(12, "size", (POINT,)),
        runtime=(POINT,),
        growth=(Axis("nodes", ((3.0, TINY), (6.0, replace(TINY, nodes=6)))),),
        ablations=(POINT,),
        sensitivity=(POINT,),
        high=TINY,
    )
    measurements: list[Measurement] = []
    tables: list[Table] = []
    asked = conditions(tmp_path)
    for _, part in AuctionBench(asked, scope).parts():
        result = part()
        measurements += result.measurements
        tables += result.tables
    assert {measured.name for measured in measurements} == set(goals("auction"))
    document = report("auction", measurements, quick=True, seed=0)
    write_artefacts(tmp_path, document, tables)
    assert json.loads((tmp_path / "auction.json").read_text()) == document
    assert [table.name for table in tables] == [
        "figure_13",
        "growth",
        "figure_12_ratio",
        "figure_12_ratio_loaded",
        "figure_8",
        "ablations",
        "ablations_last",
        "forecast_error",
        "sensitivity",
        "misreports",
    ]
    for table in tables:
        assert (tmp_path / f"{table.name}.csv").read_text().startswith(",".join(table.columns[:2]))
        assert (tmp_path / f"{table.name}.png").read_bytes().startswith(b"\x89PNG")
    assert "Figure 8 lacks a point: it is not here" in asked.console.file.getvalue()


@pytest.mark.parametrize("scope", [quick(0), full(0, Path("nowhere"))])
def test_settings_of_a_part_have_names_of_their_own(scope):
    figures = (*scope.comparisons, scope.small, scope.small_loaded)
    settings = {point.setting for figure in figures for point in figure.points}
    settings |= {setting for axis in scope.growth for _, setting in axis.points} | {scope.high}
    assert len({Trial(setting, 0, OURS).setting_name for setting in settings}) == len(settings)
    assert scope.high in settings
