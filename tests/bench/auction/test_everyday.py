"""Figures and tables of everyday loads, from rows made by hand."""

from dataclasses import replace

import pytest

from bench.auction.comparison import OURS
from bench.auction.everyday import (
    DRAWN,
    RIVALS,
    WORKING_DAY,
    Everyday,
    EverydayLoad,
    everyday,
    trials_of,
    trials_of_working_days,
    working_days,
)
from bench.auction.runs.contenders import DEFAULT, HINDSIGHT_PRICE
from bench.auction.runs.later_days import AFTER, FOURTH_DAY, SECOND_DAY
from bench.auction.runs.trials import MEASURES
from infra.errors import CommandError
from tests.bench.auction.rows import TINY, no_runs, welfare_rows

LOW = EverydayLoad(DRAWN, 0.2, 1.0, TINY)
HIGH = EverydayLoad(DRAWN, 4.0, 1.75, replace(TINY, arrivals_per_slot=40.0))
TRACED = EverydayLoad("mine.csv", 4.0, 1.75, replace(TINY, nodes=4))
EVERYDAY = Everyday((LOW, HIGH, TRACED), (0, 1))
NAMES = (DEFAULT, SECOND_DAY, *RIVALS, *AFTER.values())


def rows_of(folder, changed=None, ratios=None):
    return welfare_rows(folder, EVERYDAY.loads, trials_of(EVERYDAY), changed, ratios)


def figures_of(rows):
    return {measured.name: measured for measured in everyday(EVERYDAY, rows).measurements}


def test_contenders_have_every_day_and_drawn_alternatives():
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
def test_least_gain_is_of_means_with_load(tmp_path, name, ours, rival):
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


def test_named_gains_are_means_of_their_loads(tmp_path):
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


def test_wrong_forecast_costs_worst_mean(tmp_path):
    after = AFTER["1/4 of the load"]
    changed = {(HIGH, 0, after): 70, (HIGH, 1, after): 110, (LOW, 0, AFTER["4 times the value"]): 95}
    figure = figures_of(rows_of(tmp_path, changed))["wrong_forecast_loss_pct"]
    assert figure.value == pytest.approx(10)
    assert "Poisson, deviation 1.75, load 4, after 1/4 of the load" in figure.note
    # Two loads with drawn arrivals, four kinds, two days.
    assert figure.runs == 16


def test_proven_ratio_is_of_worst_day(tmp_path):
    figure = figures_of(rows_of(tmp_path, ratios={(LOW, 1): 1.3, (TRACED, 0): 1.6}))[
        "default_proven_ratio_worst"
    ]
    assert (figure.value, figure.runs) == (1.6, 6)
    assert "mine.csv, deviation 1.75, load 4" in figure.note
    assert "mean of all 1.15" in figure.note


@pytest.mark.parametrize("welfare", [0, -50])
def test_day_without_rival_welfare_is_counted_out(tmp_path, welfare):
    changed = {(LOW, 0, "eft"): welfare, (LOW, 1, "eft"): 125}
    rows = rows_of(tmp_path, changed)
    figure = figures_of(rows)["default_over_eft_min_pct"]
    assert figure.value == pytest.approx(-20)
    assert figure.runs == 5
    assert "1 days are left out, on which the other brings no welfare" in figure.note
    assert lines_of(rows)[0]["over_eft_pct"] == pytest.approx(-20)


def test_rival_without_any_welfare_has_no_gain(tmp_path):
    changed = {(LOW, seed, "titan"): 0 for seed in (0, 1)}
    assert lines_of(rows_of(tmp_path, changed))[0]["over_titan_pct"] is None


def test_day_without_default_welfare_is_named(tmp_path):
    rows = rows_of(tmp_path, {(LOW, 1, DEFAULT): -7, (LOW, 1, "eft"): -5})
    with pytest.raises(
        CommandError, match=r"load 0.2, seed 1: welfare of default is -7 micros and of eft -5"
    ):
        everyday(EVERYDAY, rows)


def test_a_day_without_a_ratio_is_named(tmp_path):
    rows = no_runs(tmp_path)
    for trial in trials_of(EVERYDAY):
        rows.keep(trial, {"welfare_micros": 100})
    with pytest.raises(CommandError, match=r"load 0.2, seed 0: without welfare there is no ratio"):
        everyday(EVERYDAY, rows)


def lines_of(rows):
    (table,) = everyday(EVERYDAY, rows).tables
    return [dict(zip(table.columns, line, strict=True)) for line in table.rows]


def test_table_has_all_rivals_loads_and_losses(tmp_path):
    changed = {
        (HIGH, seed, name): welfare
        for seed in (0, 1)
        for name, welfare in ((SECOND_DAY, 160), ("titan", 50), (HINDSIGHT_PRICE, 200))
    }
    changed |= {(HIGH, 0, AFTER["4 times the load"]): 80}
    lines = lines_of(rows_of(tmp_path, changed, ratios={(HIGH, 1): 1.3}))
    assert [(line["workload"], line["load"]) for line in lines] == [
        ("Poisson, deviation 1", 0.2),
        ("Poisson, deviation 1.75", 4.0),
        ("mine.csv, deviation 1.75", 4.0),
    ]
    low, high, traced = lines
    assert {f"over_{rival}_pct" for rival in RIVALS} < set(high)
    assert (high["over_titan_pct"], high["over_fixed_price_hindsight_pct"]) == (pytest.approx(100), -50)
    assert high["second_day_over_fixed_price_hindsight_pct"] == pytest.approx(-20)
    assert (low["worst_loss_pct"], high["worst_loss_pct"]) == (0, pytest.approx(10))
    assert traced["worst_loss_pct"] is None
    assert (low["worst_proven_ratio"], high["worst_proven_ratio"]) == (1.0, 1.3)


CALM = EverydayLoad(WORKING_DAY, 1.0, 1.75, TINY)
BUSY = EverydayLoad(WORKING_DAY, 4.0, 1.75, replace(TINY, arrivals_per_slot=40.0))
NIGHTS = Everyday((CALM, BUSY), (0, 1))


def result_of(folder, changed):
    return working_days(NIGHTS, welfare_rows(folder, NIGHTS.loads, trials_of_working_days(NIGHTS), changed))


def test_every_contender_has_every_day():
    trials = trials_of_working_days(NIGHTS)
    names = {DEFAULT, SECOND_DAY, FOURTH_DAY, "eft", HINDSIGHT_PRICE}
    assert {(trial.setting, trial.seed, trial.contender) for trial in trials} == {
        (load.setting, seed, name) for load in NIGHTS.loads for seed in NIGHTS.seeds for name in names
    }
    assert len(set(trials)) == len(trials)


def test_fourth_day_is_compared_with_first(tmp_path):
    changed = {
        # -37.5 % and 0: the mean of these, not what the mean welfare of the first days would say.
        (BUSY, 0, DEFAULT): 160,
        (CALM, 0, HINDSIGHT_PRICE): 60,
        (CALM, 1, HINDSIGHT_PRICE): 40,
        (CALM, 0, "eft"): 20,
    }
    result = result_of(tmp_path, changed)
    over_first, over_fixed = result.measurements
    assert over_first.value == pytest.approx(-18.75)
    assert (
        "least of the means of 2 loads, 2 days each: working day, deviation 1.75, load 4" in over_first.note
    )
    assert "1 of the means are below 0" in over_first.note
    assert over_fixed.value == pytest.approx(0)
    assert "working day, deviation 1.75, load 4" in over_fixed.note
    assert "0 of the means are below 0" in over_fixed.note
    assert (over_first.runs, over_fixed.runs) == (4, 4)
    (table,) = result.tables
    assert [dict(zip(table.columns, line, strict=True)) for line in table.rows] == [
        {
            "workload": "working day, deviation 1.75",
            "load": load,
            "first_day_part": first,
            "second_day_part": 1.0,
            "eft_part": eft,
            f"{HINDSIGHT_PRICE}_part": fixed,
        }
        for load, first, eft, fixed in ((1.0, 1.0, 0.6, 0.5), (4.0, 1.3, 1.0, 1.0))
    ]


@pytest.mark.long
def test_a_fourth_day_is_judged_after_three_others():
    setting = replace(TINY, night_part=0.5)
    alone, fourth = MEASURES[DEFAULT](setting, 0), MEASURES[FOURTH_DAY](setting, 0)
    earlier = sum(MEASURES["eft"](setting, (1 + number) * 1_000_000)["bids"] for number in range(3))
    assert fourth["bids"] == alone["bids"] + earlier
    assert fourth["welfare_micros"] > 0
