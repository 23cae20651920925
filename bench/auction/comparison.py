"""Welfare of the auction relative to each baseline, on the same days: as in Figures 4 to 9, and with nothing
declared at any load."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from types import MappingProxyType

from bench.auction.scope import Everyday, EverydayLoad, Figure
from bench.auction.trials import DEFAULT, AuctionTrial
from bench.figures import Measurement, Result, Table, Value
from bench.runs import Runs
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
    values: int
    """Number of values behind it."""


def interval(values: Sequence[float]) -> Interval:
    """Return the interval of independent values, by Student's t.

    Raises:
        ValueError: no values, or more than the table of t has.
    """
    if not 1 <= len(values) <= MOST_VALUES:
        raise ValueError(f"{len(values)} values, from 1 to {MOST_VALUES} are needed")
    if len(values) == 1:
        return Interval(values[0], None, 1)
    error = stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), _T_975[len(values) - 2] * error, len(values))


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
    runs: AuctionRuns, setting: PaperSetting, seeds: Sequence[int], ours: str, theirs: str
) -> Interval:
    """Return the mean gain in welfare of `ours` over `theirs` in per cent: of each day's ratio less 1.

    A day on which `theirs` brings no welfare, and `ours` no less, has no ratio and is left out.

    Raises:
        CommandError: no day has a ratio, or `theirs` brings no welfare on a day and `ours` less.
    """
    return interval([100 * (ratio - 1) for ratio in _ratios(runs, setting, seeds, ours, theirs)])


def comparison_table(figure: Figure, seeds: Sequence[int], runs: AuctionRuns, suffix: str = "") -> Table:
    """Return a row per point and contender: its welfare over the auction's, and the auction's gain."""
    published = PUBLISHED_GAINS_PCT.get(figure.number, {})
    lines: list[dict[str, Value]] = []
    for point in figure.points:
        for contender in (OURS, *BASELINES):
            part = interval(_ratios(runs, point.setting, seeds, contender, OURS))
            gain = gain_pct(runs, point.setting, seeds, OURS, contender)
            lines.append(
                {
                    figure.axis: point.label,
                    "contender": contender,
                    "normalised_welfare": part.mean,
                    "normalised_welfare_ci95": part.half_width,
                    "gain_pct": gain.mean,
                    "gain_ci95_pct": gain.half_width,
                    "paper_gain_pct": published.get((point.label, contender)),
                }
            )
    return Table(f"figure_{figure.number}{suffix}", lines)


def measured_result(figures: Sequence[Figure], seeds: Sequence[int], runs: AuctionRuns) -> Result:
    """Return the gains with measured speeds at Figure 8's last load, and a table of each figure."""
    (highest,) = (figure.points[-1] for figure in figures if figure.number == 8)
    gains = {rival: gain_pct(runs, highest.setting, seeds, OURS, rival) for rival in ("titan", "eft", "ntm")}
    note = f"mean of {len(seeds)} days; {highest.setting.nodes} nodes, {highest.label} load, measured speeds"
    return Result(
        tuple(
            Measurement(f"measured_speeds_over_{rival}_pct", gain.mean, note, gain.values)
            for rival, gain in gains.items()
        ),
        tuple(comparison_table(figure, seeds, runs, "_measured") for figure in figures),
    )


def _ratios(
    runs: AuctionRuns, setting: PaperSetting, seeds: Sequence[int], over: str, under: str
) -> list[float]:
    ratios = []
    for seed in seeds:
        trial = AuctionTrial(setting, seed, under)
        divisor = runs.of(trial)["welfare_micros"]
        welfare = runs.of(AuctionTrial(setting, seed, over))["welfare_micros"]
        if divisor > 0:
            ratios.append(welfare / divisor)
        elif welfare < divisor:
            raise CommandError(
                f"{trial}: welfare is {divisor:.0f} micros and of {over} {welfare:.0f}, nothing to compare "
                "with: try a larger setting"
            )
    if not ratios:
        raise CommandError(f"{trial}: no welfare on any day, nothing to compare with: try a larger setting")
    return ratios


RIVALS = ("eft", "titan", OURS)
"""Rivals of the auction with nothing declared; `OURS` has a forecast from the day before."""
TUNED_LOADS = (2.0, 4.0)
"""Loads for which the auction's constants were tuned: docs/workloads/auction-paper.md."""


def everyday_trials(everyday: Everyday) -> list[AuctionTrial]:
    """Return a trial for every contender on every everyday load and day."""
    return [
        AuctionTrial(load.setting, seed, name)
        for load in everyday.loads
        for name in (DEFAULT, *RIVALS)
        for seed in everyday.seeds
    ]


def everyday_result(everyday: Everyday, runs: AuctionRuns) -> Result:
    """Return the gains of the auction with nothing declared, and its worst proven ratio; with a row per load.

    Raises:
        CommandError: there is no welfare to compare with.
    """
    gains = {
        rival: {load: gain_pct(runs, load.setting, everyday.seeds, DEFAULT, rival) for load in everyday.loads}
        for rival in RIVALS
    }
    ratios = {
        load: max(proven_ratio_of(runs, AuctionTrial(load.setting, seed, DEFAULT)) for seed in everyday.seeds)
        for load in everyday.loads
    }
    worst = max(ratios, key=ratios.__getitem__)
    tuned = {load: gain for load, gain in gains[OURS].items() if load.load in TUNED_LOADS}
    rows = [
        {
            "deviation": load.deviation,
            "load": load.load,
            **{f"over_{rival}_pct": gains[rival][load].mean for rival in RIVALS},
            "worst_proven_ratio": ratios[load],
        }
        for load in everyday.loads
    ]
    days = len(ratios) * len(everyday.seeds)
    return Result(
        (
            _least("default_over_eft_min_pct", gains["eft"]),
            _least("default_over_titan_min_pct", gains["titan"]),
            Measurement(
                "default_over_tuned_pct",
                fmean(gain.mean for gain in tuned.values()),
                f"mean of {len(tuned)} loads from {TUNED_LOADS[0]:g} to {TUNED_LOADS[1]:g}",
                _days(tuned),
            ),
            Measurement(
                "default_proven_ratio_worst",
                ratios[worst],
                f"by the live certificate: the worst of {days} single days, from an empty ledger: {worst}",
                days,
            ),
        ),
        (Table("everyday", rows),),
    )


def proven_ratio_of(runs: AuctionRuns, trial: AuctionTrial) -> float:
    """Return the ratio of a day by its last certificate.

    Raises:
        CommandError: the day has no welfare, and so no ratio.
    """
    outcome = runs.of(trial)
    if "proven_ratio" not in outcome:
        raise CommandError(f"{trial}: without welfare there is no ratio: try a larger setting")
    return outcome["proven_ratio"]


def _least(name: str, gains: Mapping[EverydayLoad, Interval]) -> Measurement:
    """Return the least of the means over days, with its load."""
    worst = min(gains, key=lambda load: gains[load].mean)
    lost = sum(gain.mean < 0 for gain in gains.values())
    note = f"least of the means of {len(gains)} loads: {worst}; {lost} of the means are below 0"
    return Measurement(name, gains[worst].mean, note, _days(gains))


def _days(gains: Mapping[EverydayLoad, Interval]) -> int:
    return sum(gain.values for gain in gains.values())
