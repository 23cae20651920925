"""How the time of a decision grows with nodes, slots and work, one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.auction.comparison import slope
from bench.auction.runs.measures import DECISION_TIME
from bench.auction.runs.pool import Rows
from bench.auction.runs.trial import Trial
from bench.charts import Lines
from bench.figures import Table
from bench.workloads.paper import PaperSetting


@dataclass(frozen=True)
class Axis:
    """What is varied."""

    name: str
    points: tuple[tuple[float, PaperSetting], ...]


def trials_of(axes: Sequence[Axis], seed: int) -> list[Trial]:
    """A measurement per point, alone."""
    return [Trial(setting, seed, DECISION_TIME, alone=True) for axis in axes for _, setting in axis.points]


def growth_table(axes: Sequence[Axis], seed: int, rows: Rows) -> Table:
    """A row per point, with the slope of log median over log size along its axis."""
    lines: list[tuple[float | str | None, ...]] = []
    for axis in axes:
        values = [rows.values(Trial(setting, seed, DECISION_TIME, alone=True)) for _, setting in axis.points]
        sizes = [size for size, _ in axis.points]
        power = slope(sizes, [value["median_s"] for value in values])
        for size, (_, setting), value in zip(sizes, axis.points, values, strict=True):
            milliseconds = (1_000 * value[name] for name in ("median_s", "mean_s", "p99_s"))
            unproven_pct = 100 * value["unproven"]
            lines.append((axis.name, size, setting.nodes, setting.slots, *milliseconds, power, unproven_pct))
    columns = (
        "axis",
        "size",
        "nodes",
        "slots",
        "median_ms",
        "mean_ms",
        "p99_ms",
        "slope_of_median",
        "unproven_pct",
    )
    chart = Lines(
        "axis", "size", ("median_ms",), "median time of a decision, ms", "nodes, slots, factor on work"
    )
    return Table("growth", columns, lines, chart)
