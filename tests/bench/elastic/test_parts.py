"""The whole benchmark on a tiny setting: the parts that simulate, their figures, and what is left behind."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.elastic import thesis
from bench.elastic.parts import ElasticBench
from bench.elastic.scope import LABELS, SCALING_SCHEMES, Scope, full, quick, scaling_trial, table_3_5
from bench.elastic.trial import Setting
from bench.figures import Conditions
from bench.goals import goals, missed
from bench.report import report, write_artefacts

TINY = Setting(seed=1, factor=0.02, first_day=4.0, days=0.05)
SIMULATED = ("fifteen days", "schemes", "loaning", "scheduling")
SCOPE = Scope(
    setting=TINY,
    timed=TINY,
    growth=(TINY, replace(TINY, days=0.1)),
    rows=(1, 2, 9, 12, 13, 14),
    untuned_schemes=("pollux", "lyra"),
    ungrouped=("basic",),
    wrong_shares=(0.6,),
    ways_with_scaling=False,
    elastic_shares=(1.0,),
    elastic_schemes=("lyra",),
    lossy_shares=(1.0,),
)


def conditions(folder) -> Conditions:
    return Conditions(
        True, 1, folder, jobs=2, traces=folder, trace_files=(), console=Console(file=io.StringIO())
    )


@pytest.mark.long
def test_every_part_brings_its_figures_and_tables(tmp_path):
    bench = ElasticBench(conditions(tmp_path), SCOPE)
    parts = dict(bench.parts())
    assert {goal.part for goal in goals("elastic").values()} <= set(parts)
    results = [parts[name]() for name in SIMULATED]
    measurements = [measured for result in results for measured in result.measurements]
    wanted = {name for name, goal in goals("elastic").items() if goal.part in SIMULATED}
    assert {measured.name for measured in measurements} == wanted
    tables = [table for result in results for table in result.tables]
    assert {table.name for table in tables} == {
        "growth",
        "placement_on_loans",
        "table_3_5",
        "table_3_6",
        "table_3_7",
        "table_3_8",
        "table_3_9_queue",
        "table_3_9_jct",
        "tuning",
        *(f"figure_3_{number}" for number in (12, 14, 15)),
        "figure_3_16_queue",
        "figure_3_16_jct",
    }
    document = report("elastic", measurements, quick=True, seed=1)
    assert all("simul" in figure["note"] or "slope" in figure["note"] for figure in document["figures"])
    write_artefacts(tmp_path, document, tables)
    assert len(list(tmp_path.glob("*.png"))) == len(tables) == len(list(tmp_path.glob("*.csv")))
    (absent,) = (
        line for line in missed("elastic", ["schemes"], measurements[:-1], quick=True) if "missing" in line
    )
    assert absent.startswith("jct_vs_no_loans is missing")


@pytest.mark.parametrize("scope", [full(0), quick(0)], ids=["full", "quick"])
def test_rivals_run_on_the_same_trace(scope):
    rows = table_3_5(scope.setting)
    assert rows.keys() == LABELS.keys() == thesis.TABLE_3_5.keys()
    assert {trial.setting for trial in rows.values()} == {scope.setting}
    assert {1, 2, 9, 12, 13, 14} <= set(scope.rows)
    trials = [scaling_trial(scope.setting, scheme, 0.4) for scheme in SCALING_SCHEMES]
    assert {trial.setting for trial in trials} == {scope.setting}
    assert [trial.scheme for trial in trials] == ["gandiva", "afs", "pollux", "lyra", "lyra"]


def test_the_full_form_has_every_row_of_the_thesis():
    scope = full(0)
    assert set(scope.rows) == set(range(1, 15))
    assert set(scope.ungrouped) == thesis.TABLE_3_6.keys()
    assert set(scope.wrong_shares) == thesis.TABLE_3_9.keys()
    assert (scope.setting.factor, scope.setting.first_day, scope.setting.days) == (1.0, 0.0, 15.0)


def test_the_gains_that_the_thesis_states_are_those_of_its_table():
    mean = {row: (values["queue_mean_s"], values["jct_mean_s"]) for row, values in thesis.TABLE_3_5.items()}
    assert mean[1][0] / mean[2][0] == pytest.approx(1.53, abs=0.01)
    assert mean[1][1] / mean[2][1] == pytest.approx(1.48, abs=0.01)
    assert mean[12][1] / mean[2][1] == pytest.approx(1.28, abs=0.02)
    assert mean[12][1] / mean[14][1] == pytest.approx(1.42, abs=0.01)
