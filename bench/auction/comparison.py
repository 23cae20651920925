"""The welfare of the auction against that of each rival, on the same days, as in Figures 4 to 9."""

from collections.abc import Iterable, Sequence

from bench.auction.published import GainsPct
from bench.auction.runs.rows import Rows
from bench.auction.runs.trial import Trial
from bench.auction.statistics import Interval, interval
from bench.charts import Bars
from bench.figures import Table
from bench.workloads.figures import Point
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError

OURS = "pdftsp"
RIVALS = ("published", "titan", "eft", "ntm", "fixed_price")


def trials_of(settings: Iterable[PaperSetting], seeds: Sequence[int]) -> list[Trial]:
    """Every contender on every day."""
    return [Trial(setting, seed, name) for setting in settings for seed in seeds for name in (OURS, *RIVALS)]


def gain_pct(
    rows: Rows,
    setting: PaperSetting,
    seeds: Sequence[int],
    ours: str,
    theirs: str,
    value: str = "welfare_micros",
) -> Interval:
    """By how much `ours` is above `theirs`, in per cent: mean of the ratio of each day less 1.

    Raises:
        CommandError: `theirs` has none on some day, so that there is no ratio.
    """
    return interval([100 * (ratio - 1) for ratio in _ratios(rows, setting, seeds, ours, theirs, value)])


def comparison_table(
    name: str, axis: str, points: Sequence[Point], seeds: Sequence[int], rows: Rows, published: GainsPct
) -> Table:
    """A row per point and contender: its welfare as a part of the auction's, and the gain over it.

    Args:
        axis: what sets the points apart.
        published: the paper's own gains, where it has any.
    """
    lines = []
    for point in points:
        for contender in (OURS, *RIVALS):
            part = interval(_ratios(rows, point.setting, seeds, contender, OURS, "welfare_micros"))
            gain = gain_pct(rows, point.setting, seeds, OURS, contender)
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
    rows: Rows, setting: PaperSetting, seeds: Sequence[int], over: str, under: str, value: str
) -> list[float]:
    ratios = []
    for seed in seeds:
        trial = Trial(setting, seed, under)
        divisor = rows.values(trial)[value]
        if divisor <= 0:
            raise CommandError(
                f"{trial}: {value} is {divisor}, nothing to compare with: try a larger setting"
            )
        ratios.append(rows.values(Trial(setting, seed, over))[value] / divisor)
    return ratios
