"""Figures of the auction with nothing declared, from outcomes made by hand."""

from dataclasses import replace

import pytest

from bench.auction.comparison import OURS, RIVALS, everyday_result, everyday_trials
from bench.auction.scope import Everyday, EverydayLoad
from bench.auction.trials import DEFAULT
from infra.errors import CommandError
from tests.bench.auction.rows import TINY, no_runs, welfare_rows

LOW = EverydayLoad(0.2, 1.0, TINY)
HIGH = EverydayLoad(4.0, 1.75, replace(TINY, arrivals_per_slot=40.0))
EVERYDAY = Everyday((LOW, HIGH), (0, 1))


def rows_of(folder, changed=None, ratios=None):
    return welfare_rows(folder, EVERYDAY.loads, everyday_trials(EVERYDAY), changed, ratios)


def figures_of(rows):
    return {measured.name: measured for measured in everyday_result(EVERYDAY, rows).measurements}


def lines_of(rows):
    (table,) = everyday_result(EVERYDAY, rows).tables
    return table.rows


def test_every_contender_has_every_day():
    trials = everyday_trials(EVERYDAY)
    assert {(trial.setting, trial.seed, trial.contender) for trial in trials} == {
        (load.setting, seed, name)
        for load in EVERYDAY.loads
        for seed in (0, 1)
        for name in (DEFAULT, *RIVALS)
    }
    assert len(set(trials)) == len(trials)


@pytest.mark.parametrize("rival", ["eft", "titan"])
def test_the_least_gain_is_of_means_over_days(tmp_path, rival):
    changed = {
        # -20 % and +10 %: the worst day, but not the worst mean.
        (LOW, 0, DEFAULT): 80,
        (LOW, 1, DEFAULT): 110,
        # 0 and -20 %.
        (HIGH, 1, rival): 125,
    }
    figure = figures_of(rows_of(tmp_path, changed))[f"default_over_{rival}_min_pct"]
    assert figure.value == pytest.approx(-10)
    assert figure.runs == 4
    assert "deviation 1.75, load 4; 2 of the means are below 0" in figure.note


def test_gain_over_the_tuned_form_by_load(tmp_path):
    figure = figures_of(rows_of(tmp_path, {(HIGH, 0, OURS): 50, (LOW, 0, OURS): 1}))["default_over_tuned_pct"]
    assert figure.value == pytest.approx(50)
    assert figure.runs == 2


def test_the_proven_ratio_is_of_the_worst_day(tmp_path):
    rows = rows_of(tmp_path, ratios={(LOW, 1): 1.3, (HIGH, 0): 1.6})
    figure = figures_of(rows)["default_proven_ratio_worst"]
    assert (figure.value, figure.runs) == (1.6, 4)
    assert "deviation 1.75, load 4" in figure.note
    assert [line["worst_proven_ratio"] for line in lines_of(rows)] == [1.3, 1.6]


@pytest.mark.parametrize("welfare", [0, -50])
def test_days_without_rival_welfare_are_left_out(tmp_path, welfare):
    rows = rows_of(tmp_path, {(LOW, 0, "eft"): welfare, (LOW, 1, "eft"): 125})
    figure = figures_of(rows)["default_over_eft_min_pct"]
    assert (figure.value, figure.runs) == (pytest.approx(-20), 3)
    assert lines_of(rows)[0]["over_eft_pct"] == pytest.approx(-20)


def test_a_rival_without_any_welfare_is_named(tmp_path):
    rows = rows_of(tmp_path, {(LOW, seed, "titan"): 0 for seed in (0, 1)})
    with pytest.raises(CommandError, match=r"seed 1, titan: no welfare on any day"):
        everyday_result(EVERYDAY, rows)


def test_a_day_with_negative_welfare_is_named(tmp_path):
    rows = rows_of(tmp_path, {(LOW, 1, DEFAULT): -7, (LOW, 1, "eft"): -5})
    with pytest.raises(CommandError, match=r"seed 1, eft: welfare is -5 micros and of default -7"):
        everyday_result(EVERYDAY, rows)


def test_a_day_without_a_ratio_is_named(tmp_path):
    rows = no_runs(tmp_path)
    for trial in everyday_trials(EVERYDAY):
        rows.keep(trial, {"welfare_micros": 100})
    with pytest.raises(CommandError, match=r"seed 0, default: without welfare there is no ratio"):
        everyday_result(EVERYDAY, rows)
