"""Figures and the table of days with a night, from rows made by hand."""

from dataclasses import replace

import pytest

from bench.auction.everyday import Everyday, Load
from bench.auction.runs.contenders import DEFAULT, HINDSIGHT_PRICE
from bench.auction.runs.later_days import FOURTH_DAY, SECOND_DAY
from bench.auction.runs.measures import MEASURES
from bench.auction.working_days import WORKING_DAY, trials_of, working_days
from tests.bench.auction.rows import TINY, welfare_rows

LOW = Load(WORKING_DAY, 1.0, 1.75, TINY)
HIGH = Load(WORKING_DAY, 4.0, 1.75, replace(TINY, arrivals_per_slot=40.0))
DAYS = Everyday((LOW, HIGH), (0, 1))


def result_of(folder, changed):
    return working_days(DAYS, welfare_rows(folder, DAYS.loads, trials_of(DAYS), changed))


def test_every_contender_has_every_day():
    trials = trials_of(DAYS)
    names = {DEFAULT, SECOND_DAY, FOURTH_DAY, "eft", HINDSIGHT_PRICE}
    assert {(trial.setting, trial.seed, trial.contender) for trial in trials} == {
        (load.setting, seed, name) for load in DAYS.loads for seed in DAYS.seeds for name in names
    }
    assert len(set(trials)) == len(trials)


def test_the_fourth_day_is_compared_with_the_first_and_with_the_price_in_hindsight(tmp_path):
    changed = {
        # -37.5 % and 0: the mean of these, not what the mean welfare of the first days would say.
        (HIGH, 0, DEFAULT): 160,
        (LOW, 0, HINDSIGHT_PRICE): 60,
        (LOW, 1, HINDSIGHT_PRICE): 40,
        (LOW, 0, "eft"): 20,
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
