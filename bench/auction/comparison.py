"""Welfare of the auction relative to each baseline, on the same days, as in Figures 4 to 9."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from types import MappingProxyType

from bench.auction.runs.trials import AuctionTrial
from bench.charts import Bars
from bench.figures import Table
from bench.runs import Runs
from bench.workloads.figures import Point
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError

AuctionRuns = Runs[AuctionTrial, Mapping[str, float]]
"""Outcomes of trials: values by name."""
GainsPct = Mapping[tuple[str, str], float]
"""Gain in welfare of pdFTSP over a baseline (%), by point and baseline."""

PUBLISHED_GAINS_PCT: Mapping[int, GainsPct] = MappingProxyType(
    {
        4: {("50", "titan"): 30.78, ("50", "eft"): 137.35, ("50", "ntm"): 155.84},
        8: {("high", "titan"): 48.99, ("high", "eft"): 151.57, ("high", "ntm"): 184.94},
    }
)
"""Published gains by figure."""

PUBLISHED_RATIO_AT_MOST = 3.0
"""Upper bound of the offline optimum over pdFTSP's welfare, in all settings of Figure 12."""


# Student's t at 0.975, by degrees of freedom from 1.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
MOST_VALUES = len(_T_975) + 1


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval; no width from a single value."""

    mean: float
    half_width: float | None


def interval(values: Sequence[float]) -> Interval:
    """Return the interval of independent values, by Student's t.

    Raises:
        ValueError: no values, or more than the table of t has.
    """
    if not 1 <= len(values) <= MOST_VALUES:
        raise ValueError(f"{len(values)} values, from 1 to {MOST_VALUES} are needed")
    if len(values) == 1:
        return Interval(values[0], None)
    error = stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), _T_975[len(values) - 2] * error)


OURS = "pdftsp"
BASELINES = ("published", "titan", "eft", "ntm", "fixed_price")


def trials_of(settings: Iterable[PaperSetting], seeds: Sequence[int]) -> list[AuctionTrial]:
    """Return a trial for every contender on every day."""
    return [
        AuctionTrial(setting, seed, name)
        for setting in settings
        for seed in seeds
        for name in (OURS, *BASELINES)
    ]


def gain_pct(
    runs: AuctionRuns,
    setting: PaperSetting,
    seeds: Sequence[int],
    ours: str,
    theirs: str,
    value: str = "welfare_micros",
) -> Interval:
    """Return the mean gain of `ours` over `theirs` in per cent: of each day's ratio less 1.

    Raises:
        CommandError: the value of `theirs` is not positive on a day, so that there is no ratio.
    """
    return interval([100 * (ratio - 1) for ratio in _ratios(runs, setting, seeds, ours, theirs, value)])


def comparison_table(
    name: str,
    axis: str,
    points: Sequence[Point],
    seeds: Sequence[int],
    runs: AuctionRuns,
    published: GainsPct,
) -> Table:
    """Return a row per point and contender: its welfare as a part of the auction's, and the auction's gain.

    Args:
        axis: name of the quantity that differs between points.
        published: the paper's gains, where it has any.
    """
    lines = []
    for point in points:
        for contender in (OURS, *BASELINES):
            part = interval(_ratios(runs, point.setting, seeds, contender, OURS, "welfare_micros"))
            gain = gain_pct(runs, point.setting, seeds, OURS, contender)
            lines.append(
                (
                    point.label,
                    contender,
                    part.mean,
                    part.half_width,
                    gain.mean,
                    gain.half_width,
                    published.get((point.label, contender)),
                )
            )
    columns = (
        axis,
        "contender",
        "normalised_welfare",
        "normalised_welfare_ci95",
        "gain_pct",
        "gain_ci95_pct",
        "paper_gain_pct",
    )
    chart = Bars(axis, *columns[1:4], f"welfare / welfare of {OURS}, mean of {len(seeds)} days, 95 % CI")
    return Table(name, columns, lines, chart)


def _ratios(
    runs: AuctionRuns, setting: PaperSetting, seeds: Sequence[int], over: str, under: str, value: str
) -> list[float]:
    ratios = []
    for seed in seeds:
        trial = AuctionTrial(setting, seed, under)
        divisor = runs.of(trial)[value]
        if divisor <= 0:
            raise CommandError(
                f"{trial}: {value} is {divisor}, nothing to compare with: try a larger setting"
            )
        ratios.append(runs.of(AuctionTrial(setting, seed, over))[value] / divisor)
    return ratios
