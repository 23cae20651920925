"""The tables from rows made by hand."""

from dataclasses import replace

import pytest

from bench.auction.comparison import BASELINES, OURS, comparison_table, gain_pct
from bench.auction.competitive_ratio import competitive_ratio, proven_ratio, runtime
from bench.auction.scope import Figure, Point
from bench.auction.trials import CLEARING_BOUND, DEFAULT, OPTIMUM, TITANS_PROGRAM, AuctionTrial
from infra.errors import CommandError
from tests.bench.auction.rows import TINY, no_runs, rows_of

OTHER = replace(TINY, nodes=4)


def test_gain_is_mean_of_daily_ratios(tmp_path):
    welfare = {(TINY, 0, OURS): 300, (TINY, 1, OURS): 200, (TINY, 0, "eft"): 200, (TINY, 1, "eft"): 200}
    found = gain_pct(rows_of(tmp_path, welfare), TINY, (0, 1), OURS, "eft")
    # 50 % and 0 %: the deviation is 50 / sqrt(2), the error 25, t at one degree of freedom 12.706.
    assert found.mean == pytest.approx(25.0)
    assert found.half_width == pytest.approx(25 * 12.706)


def test_comparison_has_row_per_point_and_contender(tmp_path):
    points = (Point("light", TINY), Point("high", OTHER))
    welfare = {
        (point.setting, seed, name): 100 * (1 + (name == OURS))
        for point in points
        for seed in (0, 1)
        for name in (OURS, *BASELINES)
    }
    table = comparison_table(Figure(8, "workload", points), (0, 1), rows_of(tmp_path, welfare))
    assert len(table.rows) == 2 * (1 + len(BASELINES))
    lines = map(tuple, map(dict.values, table.rows))
    cells = {line[:2]: line[2:] for line in lines}
    assert cells["light", "titan"] == pytest.approx((0.5, 0.0, 100.0, 0.0, None))
    assert cells["high", "titan"] == pytest.approx((0.5, 0.0, 100.0, 0.0, 48.99))
    assert cells["high", OURS] == pytest.approx((1.0, 0.0, 0.0, 0.0, None))


def test_baseline_without_welfare_is_named(tmp_path):
    rows = rows_of(tmp_path, {(TINY, 0, OURS): 300, (TINY, 0, "ntm"): 0})
    with pytest.raises(CommandError, match=r"seed 0, ntm: no welfare on any day"):
        gain_pct(rows, TINY, (0,), OURS, "ntm")


def test_ratios_use_proven_bound_and_narrow_gaps(tmp_path):
    rows = rows_of(tmp_path, {(TINY, 0, DEFAULT): 80, (TINY, 1, DEFAULT): 50, (TINY, 2, DEFAULT): 10})
    for seed, best, bound in ((0, 100, 101), (1, 100, 100), (2, 90, 100)):
        gap = (bound - best) / best
        rows.keep(
            AuctionTrial(TINY, seed, OPTIMUM), {"welfare_micros": best, "bound_micros": bound, "gap": gap}
        )
    result = competitive_ratio(Figure(12, "size", (Point("tiny", TINY),)), (0, 1, 2), rows, "ratio")
    figures = {measured.name: measured.value for measured in result.measurements}
    assert figures == {
        "ratio_mean": pytest.approx((101 / 80 + 100 / 50) / 2),
        "ratio_worst": pytest.approx(2.0),
    }
    assert [line["counted"] for line in result.tables[0].rows] == ["yes", "yes", "no: gap above 1%"]
    assert all("1 more are left out" in measured.note for measured in result.measurements)


def test_without_a_known_optimum_there_is_no_ratio(tmp_path):
    rows = rows_of(tmp_path, {(TINY, 0, DEFAULT): 80})
    rows.keep(AuctionTrial(TINY, 0, OPTIMUM), {"welfare_micros": 50, "bound_micros": 100, "gap": 1.0})
    result = competitive_ratio(Figure(12, "size", (Point("tiny", TINY),)), (0,), rows, "ratio")
    assert result.measurements == ()
    assert len(result.tables[0].rows) == 1


def test_day_without_auction_welfare_is_named(tmp_path):
    rows = rows_of(tmp_path, {(TINY, 3, DEFAULT): 0})
    rows.keep(AuctionTrial(TINY, 3, OPTIMUM), {"welfare_micros": 100, "bound_micros": 100, "gap": 0.0})
    with pytest.raises(CommandError, match=r"seed 3, default: without welfare there is no ratio"):
        competitive_ratio(Figure(12, "size", (Point("tiny", TINY),)), (3,), rows, "ratio")
    with pytest.raises(CommandError, match=r"seed 3, default: without welfare there is no ratio"):
        proven_ratio(TINY, (3,), rows)


def test_proven_ratio_is_mean_of_days(tmp_path):
    rows = no_runs(tmp_path)
    for seed, ratio in ((0, 1.25), (1, 1.75)):
        rows.keep(AuctionTrial(TINY, seed, DEFAULT), {"planned_welfare_micros": 100, "proven_ratio": ratio})
        rows.keep(AuctionTrial(TINY, seed, CLEARING_BOUND), {"bound_micros": 110 + 10 * seed})
    figure = proven_ratio(TINY, (0, 1), rows)
    assert (figure.value, figure.runs) == (1.5, 2)
    assert "the worst 1.75" in figure.note
    assert "in hindsight 1.15, the worst 1.2" in figure.note


def test_times_are_compared_between_runs_that_were_alone(tmp_path):
    rows = no_runs(tmp_path)
    program = {"program_s_per_bid": 0.5, "program_solves": 1, "solves": 12}
    for name, decision_s, more in ((OURS, 0.002, {}), (TITANS_PROGRAM, 0.008, program)):
        trial = AuctionTrial(TINY, 0, name, alone=True)
        rows.keep(trial, {"decision_s": decision_s, "wall_s": 12.0, "bids": 24, **more})
    result = runtime((Point("3", TINY),), TINY, 0, rows)
    assert {m.name: m.value for m in result.measurements} == {
        "day_s": 12.0,
        "titan_time_ratio": pytest.approx(250.0),
        "quick_titan_time_ratio": pytest.approx(4.0),
    }
    (line,) = result.tables[0].rows
    assert list(line.values()) == [3, 0.002, 0.008, 0.5, pytest.approx(250.0)]
    assert "1 of 12 batches" in result.measurements[1].note
    assert "per bid 8 ms of `titan` as it runs" in result.measurements[2].note
