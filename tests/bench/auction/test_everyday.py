"""Figures and tables of everyday loads, from rows made by hand."""

from dataclasses import replace

import pytest

from bench.auction.comparison import OURS
from bench.auction.everyday import DRAWN, RIVALS, Everyday, Load, measurements, tables, trials_of
from bench.auction.runs.contenders import DEFAULT, HINDSIGHT_PRICE
from bench.auction.runs.later_days import AFTER, SECOND_DAY
from bench.auction.runs.pool import Rows
from infra.errors import CommandError
from tests.bench.auction.rows import TINY, row, welfare_rows

LOW = Load(DRAWN, 0.2, 1.0, TINY)
HIGH = Load(DRAWN, 4.0, 1.75, replace(TINY, arrivals_per_slot=40.0))
TRACED = Load("mine.csv", 4.0, 1.75, replace(TINY, nodes=4))
EVERYDAY = Everyday((LOW, HIGH, TRACED), (0, 1))
NAMES = (DEFAULT, SECOND_DAY, *RIVALS, *AFTER.values())


def rows_of(folder, changed=None, ratios=None):
    return welfare_rows(folder, EVERYDAY.loads, trials_of(EVERYDAY), changed, ratios)


def figures_of(rows):
    return {measured.name: measured for measured in measurements(EVERYDAY, rows)}


def test_every_contender_has_every_day_and_a_day_before_of_another_kind_only_where_arrivals_are_drawn():
    trials = trials_of(EVERYDAY)
    assert len(set(trials)) == len(trials)
    for load in EVERYDAY.loads:
        names = {trial.contender for trial in trials if trial.setting == load.setting}
        assert names == set(NAMES) - (set(AFTER.values()) if load is TRACED else set())
    assert {trial.seed for trial in trials} == {0, 1}


@pytest.mark.parametrize(
    ("name", "ours", "rival"),
    [
        ("default_over_eft_min_pct", DEFAULT, "eft"),
        ("default_over_titan_min_pct", DEFAULT, "titan"),
        ("default_over_fixed_hindsight_min_pct", DEFAULT, HINDSIGHT_PRICE),
        ("default_over_fixed_hindsight_second_day_min_pct", SECOND_DAY, HINDSIGHT_PRICE),
    ],
)
def test_the_least_gain_is_of_means_over_days_and_names_its_load(tmp_path, name, ours, rival):
    changed = {
        # -20 % and +10 %: the worst day, but not the worst mean.
        (LOW, 0, ours): 80,
        (LOW, 1, ours): 110,
        # 0 and -20 %.
        (TRACED, 1, rival): 125,
    }
    figure = figures_of(rows_of(tmp_path, changed))[name]
    assert figure.value == pytest.approx(-10)
    assert figure.runs == 6
    assert "mine.csv, deviation 1.75, load 4; 2 of the means are below 0" in figure.note


def test_gains_at_high_load_and_over_the_tuned_form_are_means_of_the_loads_they_name(tmp_path):
    changed = {
        (HIGH, 0, HINDSIGHT_PRICE): 50,
        (TRACED, 0, HINDSIGHT_PRICE): 200,
        (LOW, 0, HINDSIGHT_PRICE): 1,
        (HIGH, 0, OURS): 125,
        (LOW, 0, OURS): 1,
    }
    figures = figures_of(rows_of(tmp_path, changed))
    high, tuned = figures["default_over_fixed_hindsight_high_load_pct"], figures["default_over_tuned_pct"]
    # +100 % and 0, -50 % and 0.
    assert high.value == pytest.approx((50 - 25) / 2)
    assert "mean of 2 workloads at load 4, 2 days each; the least -25: mine.csv" in high.note
    assert tuned.value == pytest.approx(-20 / 2 / 2)
    assert (high.runs, tuned.runs) == (4, 4)


def test_a_wrong_forecast_costs_what_the_worst_kind_of_day_costs_in_the_mean(tmp_path):
    after = AFTER["1/4 of the load"]
    changed = {(HIGH, 0, after): 70, (HIGH, 1, after): 110, (LOW, 0, AFTER["4 times the value"]): 95}
    figure = figures_of(rows_of(tmp_path, changed))["wrong_forecast_loss_pct"]
    assert figure.value == pytest.approx(10)
    assert "Poisson, deviation 1.75, load 4, after 1/4 of the load" in figure.note
    # Two loads with drawn arrivals, four kinds, two days.
    assert figure.runs == 16


def test_the_proven_ratio_is_that_of_the_worst_single_day(tmp_path):
    figure = figures_of(rows_of(tmp_path, ratios={(LOW, 1): 1.3, (TRACED, 0): 1.6}))[
        "default_proven_ratio_worst"
    ]
    assert (figure.value, figure.runs) == (1.6, 6)
    assert "mine.csv, deviation 1.75, load 4" in figure.note
    assert "mean of all 1.15" in figure.note


@pytest.mark.parametrize("welfare", [0, -50])
def test_a_day_on_which_a_rival_brings_nothing_is_left_out_and_counted(tmp_path, welfare):
    changed = {(LOW, 0, "eft"): welfare, (LOW, 1, "eft"): 125}
    rows = rows_of(tmp_path, changed)
    figure = figures_of(rows)["default_over_eft_min_pct"]
    assert figure.value == pytest.approx(-20)
    assert figure.runs == 5
    assert "1 days are left out, on which the other brings no welfare" in figure.note
    line = lines_of(tables(EVERYDAY, rows)[0])[0]
    assert line["eft_part"] == pytest.approx((welfare / 100 + 1.25) / 2)
    assert line["over_eft_pct"] == pytest.approx(-20)


def test_where_a_rival_brings_nothing_on_any_day_there_is_no_gain_to_state(tmp_path):
    changed = {(LOW, seed, "ntm"): 0 for seed in (0, 1)}
    line = lines_of(tables(EVERYDAY, rows_of(tmp_path, changed))[0])[0]
    assert (line["ntm_part"], line["over_ntm_pct"]) == (0.0, None)


def test_a_day_without_welfare_of_the_default_is_named_and_not_divided_by(tmp_path):
    rows = rows_of(tmp_path, {(LOW, 1, DEFAULT): -7, (LOW, 1, "eft"): -5})
    with pytest.raises(
        CommandError, match=r"load 0.2, seed 1: welfare of default is -7 micros and of eft -5"
    ):
        measurements(EVERYDAY, rows)
    with pytest.raises(CommandError, match=r"load 0.2, seed 1: welfare of default is -7 micros"):
        tables(EVERYDAY, rows)


def test_a_day_without_a_ratio_is_named(tmp_path):
    rows = Rows(tmp_path, "s")
    for trial in trials_of(EVERYDAY):
        rows.append(row(trial, welfare_micros=100))
    with pytest.raises(CommandError, match=r"load 0.2, seed 0: without welfare there is no ratio"):
        measurements(EVERYDAY, rows)


def lines_of(table):
    return [dict(zip(table.columns, line, strict=True)) for line in table.rows]


def test_tables_have_every_rival_at_every_load_losses_too(tmp_path):
    changed = {
        (HIGH, seed, name): welfare
        for seed in (0, 1)
        for name, welfare in ((SECOND_DAY, 160), ("titan", 50), (HINDSIGHT_PRICE, 200))
    }
    first, second, _ = tables(EVERYDAY, rows_of(tmp_path, changed))
    assert (first.name, second.name) == ("everyday_first_day", "everyday_second_day")
    assert [(line["workload"], line["load"]) for line in lines_of(first)] == [
        ("Poisson, deviation 1", 0.2),
        ("Poisson, deviation 1.75", 4.0),
        ("mine.csv, deviation 1.75", 4.0),
    ]
    on_first, on_second = lines_of(first)[1], lines_of(second)[1]
    assert {f"{rival}_part" for rival in RIVALS} | {f"over_{rival}_pct" for rival in RIVALS} < set(on_first)
    assert (on_first["titan_part"], on_first["over_titan_pct"]) == (0.5, pytest.approx(100))
    assert (on_first["fixed_price_hindsight_part"], on_first["over_fixed_price_hindsight_pct"]) == (2, -50)
    assert on_second["over_titan_pct"] == pytest.approx(220)
    assert on_second["over_fixed_price_hindsight_pct"] == pytest.approx(-20)
    assert (on_first["over_first_day_pct"], on_second["over_first_day_pct"]) == (0, pytest.approx(60))


def test_the_table_of_wrong_forecasts_has_every_kind_of_day_before(tmp_path):
    changed = {(HIGH, 0, AFTER["4 times the load"]): 80, (HIGH, 0, SECOND_DAY): 120}
    _, _, table = tables(EVERYDAY, rows_of(tmp_path, changed))
    low, high = lines_of(table)
    assert low["worst_loss_pct"] == 0
    assert high["after a day of the kind"] == pytest.approx(1.1)
    assert high["after 4 times the load"] == pytest.approx(0.9)
    assert high["worst_loss_pct"] == pytest.approx(10)
    assert [column for column in table.columns if column.startswith("after ")] == [
        "after a day of the kind",
        *(f"after {kind}" for kind in AFTER),
    ]
