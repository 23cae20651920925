"""`auction` and `pdftsp` at equal information, from outcomes made by hand, and days in one ledger."""

from dataclasses import replace

import pytest

from bench.auction.day import second_day_micros, simulate_day
from bench.auction.information import INFORMATION, information_result, information_trials
from bench.auction.trials import DECLARED, DEFAULT, FORECAST, LEARNED, SECOND_DAY, AuctionTrial, day_before
from infra.errors import CommandError
from infra.figures.auction.figures import AuctionFigures
from schemas.auction.settings import AuctionPolicy, EarliestFinishPolicy
from tests.bench.auction.rows import TINY, rows_of

BUSY = replace(TINY, arrivals_per_slot=9.0)
SETTINGS, SEEDS = {"tiny": TINY, "busy": BUSY}, (3, 4)
WELFARE = {DEFAULT: 150, LEARNED: 100, DECLARED: 120, SECOND_DAY: 90, FORECAST: 100}


def result_of(folder, changed=None):
    welfare = {
        (setting, seed, name): micros
        for setting in SETTINGS.values()
        for seed in SEEDS
        for name, micros in WELFARE.items()
    }
    return information_result(SETTINGS, SEEDS, rows_of(folder, welfare | (changed or {})), "equal")


def test_policies_are_compared_by_information(tmp_path):
    figures = {measured.name: measured for measured in result_of(tmp_path).measurements}
    assert {name: measured.value for name, measured in figures.items()} == {
        "equal_none_pct": pytest.approx(50),
        "equal_declared_bounds_pct": pytest.approx(25),
        "equal_day_before_pct": pytest.approx(-10),
    }
    assert "4 of 4 days are below 0" in figures["equal_day_before_pct"].note
    assert {measured.runs for measured in figures.values()} == {4}


def test_rows_have_each_setting_after_all(tmp_path):
    (table,) = result_of(tmp_path, {(BUSY, 4, LEARNED): 300}).tables
    labels = ("all", "tiny", "busy")
    assert {(row["information"], row["setting"]) for row in table.rows} == {
        (information, label) for information in INFORMATION for label in labels
    }
    row = next(row for row in table.rows if (row["information"], row["setting"]) == ("none", "busy"))
    assert (row["days"], row["gain_worst_day_pct"], row["days_behind"]) == (2, -50, 1)


def test_day_without_welfare_is_named(tmp_path):
    with pytest.raises(CommandError, match="seed 3, forecast: no welfare to compare with"):
        result_of(tmp_path, {(TINY, 3, FORECAST): 0})


def test_trials_have_each_contender_once():
    trials = information_trials((TINY,), (3,))
    assert sorted(map(str, trials)) == sorted(str(AuctionTrial(TINY, 3, name)) for name in WELFARE)


def test_second_day_without_memory_equals_first():
    """A policy without prices decides a day alike after any other day."""
    policy = EarliestFinishPolicy(kind="eft")
    alone = simulate_day(TINY, 3, lambda _: policy).summary.part(AuctionFigures).realised_welfare_micros
    assert alone > 0
    assert second_day_micros(day_before(TINY, 3), (TINY, 3), lambda _: policy) == alone


def test_auction_remembers_the_day_before():
    alone = simulate_day(BUSY, 3, lambda _: AuctionPolicy()).summary.part(AuctionFigures)
    after = second_day_micros(day_before(BUSY, 3), (BUSY, 3), lambda _: AuctionPolicy())
    assert after != alone.realised_welfare_micros
