"""Figure 13: what a decision takes, the auction's against Titan's, and what a day takes."""

from collections.abc import Sequence

from bench.auction.comparison import OURS
from bench.auction.runs.rows import Rows
from bench.auction.runs.trial import Trial
from bench.charts import Lines
from bench.figures import Measurement, Result, Table
from bench.workloads.figures import Point
from bench.workloads.paper import PaperSetting

TITAN = "titan"


def trials_of(points: Sequence[Point], high: PaperSetting, seed: int) -> list[Trial]:
    """Both, by number of nodes, each alone."""
    settings = dict.fromkeys([high, *(point.setting for point in points)])
    return [Trial(setting, seed, name, alone=True) for name in (OURS, TITAN) for setting in settings]


def runtime(points: Sequence[Point], high: PaperSetting, seed: int, rows: Rows) -> Result:
    """`day_s` and `titan_time_ratio` at high load, and times by number of nodes."""
    lines = []
    for point in points:
        ours_s, titan_s = (_decision_s(rows, point.setting, seed, name) for name in (OURS, TITAN))
        lines.append(("seconds per bid", float(point.setting.nodes), ours_s, titan_s, titan_s / ours_s))
    day = rows.values(Trial(high, seed, OURS, alone=True))
    ours_s, titan_s = (_decision_s(rows, high, seed, name) for name in (OURS, TITAN))
    setting = f"{high.nodes} nodes, {high.slots} slots, {day['bids']:.0f} bids, alone on one core"
    measurements = (
        Measurement(
            "day_s", day["wall_s"], f"a simulated day through the cell, executors included: {setting}"
        ),
        Measurement(
            "titan_time_ratio",
            titan_s / ours_s,
            f"per bid {1_000 * titan_s:.3g} ms of the solver and the cell against {1_000 * ours_s:.3g} ms in "
            f"the cell: {setting}",
        ),
    )
    columns = ("time", "nodes", OURS, TITAN, "ratio")
    chart = Lines("time", "nodes", (OURS, TITAN), "seconds per bid", "nodes")
    return Result(measurements, (Table("figure_13", columns, lines, chart),))


def _decision_s(rows: Rows, setting: PaperSetting, seed: int, name: str) -> float:
    return rows.values(Trial(setting, seed, name, alone=True))["decision_s"]
