"""The gain of each improvement on the printed auction: alone, with the others and all together; and the cost
of a wrong forecast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.auction.comparison import OURS, gain_pct
from bench.auction.runs.contenders import ADDED, MISLED, REMOVED
from bench.auction.runs.pool import Rows
from bench.auction.runs.trial import Trial
from bench.charts import Bars
from bench.figures import Table
from bench.workloads.figures import Point

PRINTED = "published"


@dataclass(frozen=True)
class Ablation:
    """A table of gains."""

    table: str
    over: str
    """What the gains are over, in words."""
    pairs: Mapping[str, tuple[str, str]]
    """By what is improved: the contender that gains, and the one that it gains over."""


ABLATIONS = (
    Ablation(
        "ablations",
        "the printed auction's",
        {**{name: (added, PRINTED) for name, added in ADDED.items()}, "all": (OURS, PRINTED)},
    ),
    Ablation(
        "ablations_last",
        "the auction's without this one improvement",
        {name: (OURS, removed) for name, removed in REMOVED.items()},
    ),
    Ablation(
        "forecast_error",
        "the auction's that opens at zero",
        {
            forecast: (contender, REMOVED["opening prices"])
            for forecast, contender in (("a day of the kind", OURS), *MISLED.items())
        },
    ),
)


def trials_of(points: Sequence[Point], seeds: Sequence[int]) -> list[Trial]:
    """Every contender that some table needs, on every day."""
    names = dict.fromkeys(name for each in ABLATIONS for pair in each.pairs.values() for name in pair)
    return [Trial(point.setting, seed, name) for point in points for seed in seeds for name in names]


def ablation_table(ablation: Ablation, points: Sequence[Point], seeds: Sequence[int], rows: Rows) -> Table:
    """A row per point and improvement: gains in welfare and in revenue."""
    lines = []
    for point in points:
        for name, (winner, baseline) in ablation.pairs.items():
            welfare = gain_pct(rows, point.setting, seeds, winner, baseline)
            revenue = gain_pct(rows, point.setting, seeds, winner, baseline, "revenue_micros")
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
    label = f"welfare over {ablation.over}, per cent, mean of {len(seeds)} days"
    return Table(ablation.table, columns, lines, Bars(*columns[:4], label))
