"""What each improvement on the printed auction buys, alone and all together."""

from collections.abc import Sequence

from bench.auction.comparison import OURS, gain_pct
from bench.auction.runs.contenders import IMPROVEMENTS
from bench.auction.runs.rows import Rows
from bench.auction.runs.trial import Trial
from bench.charts import Bars
from bench.figures import Table
from bench.workloads.figures import Point

PRINTED = "published"
VARIANTS = {**{name: f"{PRINTED} + {name}" for name in IMPROVEMENTS}, "all": OURS}
"""Contenders by what they improve."""


def trials_of(points: Sequence[Point], seeds: Sequence[int]) -> list[Trial]:
    """The printed auction and every variant on every day."""
    return [
        Trial(point.setting, seed, name)
        for point in points
        for seed in seeds
        for name in (PRINTED, *VARIANTS.values())
    ]


def ablation_table(points: Sequence[Point], seeds: Sequence[int], rows: Rows) -> Table:
    """A row per point and improvement: gains in welfare and in revenue over the printed auction."""
    lines = []
    for point in points:
        for name, contender in VARIANTS.items():
            welfare = gain_pct(rows, point.setting, seeds, contender, PRINTED)
            revenue = gain_pct(rows, point.setting, seeds, contender, PRINTED, "revenue_micros")
            lines.append(
                (point.label, name, welfare.mean, welfare.half_width, revenue.mean, revenue.half_width)
            )
    columns = (
        "workload",
        "improvement",
        "welfare_gain_pct",
        "welfare_ci95_pct",
        "revenue_gain_pct",
        "revenue_ci95_pct",
    )
    chart = Bars(*columns[:4], f"welfare over the printed auction's, per cent, mean of {len(seeds)} days")
    return Table("ablations", columns, lines, chart)
