"""The whole benchmark on a tiny setting: the parts that simulate, their figures and their files."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.elastic.parts import SIMULATED, SUITE, ElasticScope, scope_of
from bench.elastic.simulated import ElasticSetting
from bench.elastic.table_3_5 import LABELS, PRINTED, trials_by_row
from bench.figures import Conditions
from bench.goals import goals, missed
from bench.output import report, write_artefacts
from bench.suite import SuiteRun

TINY = ElasticSetting(seed=1, factor=0.02, first_day=4.0, days=0.05)
SIMULATED_PARTS = ("fifteen days", "schemes")
SCOPE = ElasticScope(
    setting=TINY, timed=TINY, growth=(TINY, replace(TINY, days=0.1)), rows=(1, 2, 9, 12, 13, 14)
)


def conditions(folder, quick=True) -> Conditions:
    return Conditions(quick, 1, folder, jobs=2, console=Console(file=io.StringIO()))


@pytest.mark.long
def test_every_part_brings_its_figures_and_tables(tmp_path):
    bench = SuiteRun(conditions(tmp_path), SCOPE, SIMULATED)
    parts = {part.title: part for part in SUITE.parts}
    assert {goal.part for goal in goals("elastic").values()} <= set(parts)
    results = [parts[title].measure(bench) for title in SIMULATED_PARTS]
    measurements = [measured for result in results for measured in result.measurements]
    wanted = {name for name, goal in goals("elastic").items() if goal.part in SIMULATED_PARTS}
    assert {measured.name for measured in measurements} == wanted
    tables = [table for result in results for table in result.tables]
    assert {table.name for table in tables} == {"growth", "table_3_5"}
    document = report("elastic", measurements, quick=True, seed=1)
    assert all("simul" in figure["note"] for figure in document["figures"])
    write_artefacts(tmp_path, document, tables)
    assert len(list(tmp_path.glob("*.csv"))) == len(tables)
    (absent,) = (
        line for line in missed("elastic", ["schemes"], measurements[:-1], quick=True) if "missing" in line
    )
    assert absent.startswith("jct_vs_no_loans is missing")


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_rivals_run_on_the_same_trace(tmp_path, quick):
    scope = scope_of(conditions(tmp_path, quick))
    rows = trials_by_row(scope.setting)
    assert rows.keys() == LABELS.keys() == PRINTED.keys()
    assert {trial.setting for trial in rows.values()} == {scope.setting}
    assert {1, 2, 9, 12, 13, 14} <= set(scope.rows)


def test_full_form_has_all_rows_of_thesis(tmp_path):
    scope = scope_of(conditions(tmp_path, quick=False))
    assert set(scope.rows) == set(LABELS)
    assert (scope.setting.factor, scope.setting.first_day, scope.setting.days) == (1.0, 0.0, 15.0)


def test_stated_gains_match_table_of_thesis():
    mean = {row: (values["queue_mean_s"], values["jct_mean_s"]) for row, values in PRINTED.items()}
    assert mean[1][0] / mean[2][0] == pytest.approx(1.53, abs=0.01)
    assert mean[1][1] / mean[2][1] == pytest.approx(1.48, abs=0.01)
    assert mean[12][1] / mean[2][1] == pytest.approx(1.28, abs=0.02)
    assert mean[12][1] / mean[14][1] == pytest.approx(1.42, abs=0.01)
