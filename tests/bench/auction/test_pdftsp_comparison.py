"""`auction` against `pdftsp` on days of their own, from outcomes made by hand."""

from dataclasses import replace

import pytest

from bench.auction.pdftsp_comparison import OTHERS, kinds_result, kinds_trials
from bench.auction.scope import FIRST_NEW_SEED, NewDays, full, quick
from bench.auction.trials import DECLARED, DEFAULT, AuctionTrial
from infra.errors import CommandError
from tests.bench.auction.rows import TINY, no_runs

BUSY = replace(TINY, arrivals_per_slot=9.0)
DAYS = NewDays({"drawn": TINY, "busy": BUSY}, (100, 101))


def result_of(folder, changed):
    """Every planned welfare is 100 and every ratio 1, but for `changed` by setting, seed and contender."""
    runs = no_runs(folder)
    for trial in kinds_trials(DAYS):
        welfare, ratio = changed.get((trial.setting, trial.seed, trial.contender), (100, 1.0))
        runs.keep(trial, {"planned_welfare_micros": welfare, "proven_ratio": ratio})
    return kinds_result(DAYS, runs)


def test_mean_and_worst_day_are_over_all_arrivals(tmp_path):
    result = result_of(
        tmp_path,
        {
            (TINY, 100, DEFAULT): (150, 1.2),
            (TINY, 101, DEFAULT): (80, 1.0),
            (BUSY, 101, DECLARED): (50, 3.0),
        },
    )
    figures = {measured.name: measured for measured in result.measurements}
    assert figures["auction_over_pdftsp_pct"].value == pytest.approx((50 - 20 + 0 + 100) / 4)
    assert "1 of 4 days are below 0" in figures["auction_over_pdftsp_pct"].note
    assert figures["auction_over_pdftsp_worst_day_pct"].value == pytest.approx(-20)
    assert figures["auction_proven_ratio_worst_day"].value == 1.2
    assert {measured.runs for measured in result.measurements} == {4}


def test_row_has_the_tail_of_each_rival(tmp_path):
    (table,) = result_of(tmp_path, {(BUSY, 101, DECLARED): (200, 3.0)}).tables
    assert [(row["arrivals"], row["rival"]) for row in table.rows] == [
        (arrivals, rival) for arrivals in ("drawn", "busy") for rival in OTHERS
    ]
    row = next(row for row in table.rows if (row["arrivals"], row["rival"]) == ("busy", DECLARED))
    assert (row["gain_worst_day_pct"], row["days_behind"], row["days"]) == (-50, 1, 2)
    assert (row["gain_mean_pct"], row["gain_median_pct"]) == (-25, -25)
    assert (row["worst_proven_ratio"], row["worst_proven_ratio_of_auction"]) == (3.0, 1.0)


def test_rival_without_welfare_ends_the_part(tmp_path):
    with pytest.raises(CommandError, match="drawn arrivals, seed 100: published has no welfare"):
        result_of(tmp_path, {(TINY, 100, "published"): (0, 1.0)})


def test_days_have_seeds_of_their_own(tmp_path):
    for scope in (full(0, tmp_path), quick(0)):
        others = {*scope.seeds, *scope.everyday.seeds}
        assert min(scope.new_days.seeds) == FIRST_NEW_SEED
        assert others.isdisjoint(scope.new_days.seeds)
        assert all(isinstance(trial, AuctionTrial) for trial in kinds_trials(scope.new_days))


def test_days_with_traces_have_as_many_jobs(tmp_path):
    (tmp_path / "jobs_philly.csv.gz").touch()
    settings = full(0, tmp_path).new_days.settings
    assert list(settings) == ["drawn", "Philly"]
    drawn, real = settings.values()
    assert real.trace.jobs == round(drawn.arrivals_per_slot * drawn.slots) == 180
