"""Figure 13: decision times of the auction and of Titan, and the time of a day."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.auction.comparison import OURS, AuctionRuns
from bench.auction.runs.trials import TITANS_PROGRAM, AuctionTrial
from bench.charts import Lines
from bench.figures import Measurement, Result, Table
from bench.workloads.figures import Point
from bench.workloads.paper import PaperSetting

TITAN = "titan"


def trials_of(points: Sequence[Point], high: PaperSetting, seed: int) -> list[AuctionTrial]:
    """Return trials of both, by number of nodes, each alone."""
    settings = dict.fromkeys([high, *(point.setting for point in points)])
    return [
        AuctionTrial(setting, seed, name, alone=True)
        for name in (OURS, TITANS_PROGRAM)
        for setting in settings
    ]


def runtime(points: Sequence[Point], high: PaperSetting, seed: int, runs: AuctionRuns) -> Result:
    """Return `day_s`, `titan_time_ratio` and `quick_titan_time_ratio` at high load, and times by number of
    nodes."""
    lines = []
    for point in points:
        at = _seconds_per_bid(runs, point.setting, seed)
        nodes = float(point.setting.nodes)
        lines.append(("seconds per bid", nodes, at.ours, at.titan, at.program, at.program / at.ours))
    day = runs.of(AuctionTrial(high, seed, OURS, alone=True))
    titans_day = runs.of(AuctionTrial(high, seed, TITANS_PROGRAM, alone=True))
    at = _seconds_per_bid(runs, high, seed)
    setting = f"{high.nodes} nodes, {high.slots} slots, {day['bids']:.0f} bids, alone on one core"
    measurements = (
        Measurement(
            "day_s", day["wall_s"], f"a simulated day through the cell, executors included: {setting}"
        ),
        Measurement(
            "titan_time_ratio",
            at.program / at.ours,
            f"per bid {1_000 * at.program:.3g} ms of the program, solved to the end or its limit for "
            f"{titans_day['program_solves']:.0f} of {titans_day['solves']:.0f} batches, against "
            f"{1_000 * at.ours:.3g} ms in the cell: {setting}",
        ),
        Measurement(
            "quick_titan_time_ratio",
            at.titan / at.ours,
            f"per bid {1_000 * at.titan:.3g} ms of `{TITAN}` as it runs in the tables, its solvers and the "
            f"cell, against {1_000 * at.ours:.3g} ms in the cell: {setting}",
        ),
    )
    columns = ("time", "nodes", OURS, TITAN, TITANS_PROGRAM, "ratio")
    chart = Lines("time", "nodes", (OURS, TITAN, TITANS_PROGRAM), "seconds per bid", "nodes")
    return Result(measurements, (Table("figure_13", columns, lines, chart),))


@dataclass(frozen=True)
class _SecondsPerBid:
    ours: float
    titan: float
    """Time of the contender in the tables."""
    program: float


def _seconds_per_bid(runs: AuctionRuns, setting: PaperSetting, seed: int) -> _SecondsPerBid:
    ours = runs.of(AuctionTrial(setting, seed, OURS, alone=True))
    titan = runs.of(AuctionTrial(setting, seed, TITANS_PROGRAM, alone=True))
    return _SecondsPerBid(ours["decision_s"], titan["decision_s"], titan["program_s_per_bid"])
