"""`auction` against `pdftsp`. Both have the same information: none, or the day before. A third comparison is
with `pdftsp` with bounds from the distribution of values; `auction` does not use these."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from bench.auction.comparison import AuctionRuns
from bench.auction.trials import DECLARED, DEFAULT, FORECAST, LEARNED, SECOND_DAY, AuctionTrial
from bench.figures import Measurement, Result, Table, Value
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError

INFORMATION: Mapping[str, tuple[str, str]] = {
    "none": (DEFAULT, LEARNED),
    "declared bounds": (DEFAULT, DECLARED),
    "day before": (SECOND_DAY, FORECAST),
}
"""Contenders of `auction` and of `pdftsp`, by their information. The day before is in the ledger of
`auction`; `pdftsp` has opening prices from it."""


def information_trials(settings: Sequence[PaperSetting], seeds: Sequence[int]) -> list[AuctionTrial]:
    """Return a trial of both policies for each information and day."""
    names = dict.fromkeys(name for pair in INFORMATION.values() for name in pair)
    return [AuctionTrial(setting, seed, name) for setting in settings for seed in seeds for name in names]


def information_result(
    settings: Mapping[str, PaperSetting], seeds: Sequence[int], runs: AuctionRuns, prefix: str
) -> Result:
    """Return the mean gain in realised welfare of `auction` over `pdftsp` by information, with a row for each
    setting and for all.

    Raises:
        CommandError: a policy has no welfare on a day.
    """
    gains = {
        (information, label): [_gain_pct(setting, seed, runs, *pair) for seed in seeds]
        for information, pair in INFORMATION.items()
        for label, setting in settings.items()
    }
    every = {
        information: [gain for (known, _), each in gains.items() if known == information for gain in each]
        for information in INFORMATION
    }
    return Result(
        tuple(
            Measurement(
                f"{prefix}_{information.replace(' ', '_')}_pct",
                fmean(each),
                f"{len(settings)} settings, {len(seeds)} days each; median {median(each):.3g}, worst day "
                f"{min(each):.3g}; {sum(gain < 0 for gain in each)} of {len(each)} days are below 0",
                len(each),
            )
            for information, each in every.items()
        ),
        (
            Table(
                prefix,
                [
                    *(_row(information, "all", each) for information, each in every.items()),
                    *(_row(information, label, each) for (information, label), each in gains.items()),
                ],
            ),
        ),
    )


def _gain_pct(setting: PaperSetting, seed: int, runs: AuctionRuns, auction: str, pdftsp: str) -> float:
    ours, theirs = (
        runs.of(AuctionTrial(setting, seed, name))["welfare_micros"] for name in (auction, pdftsp)
    )
    if theirs <= 0:
        raise CommandError(f"{AuctionTrial(setting, seed, pdftsp)}: no welfare to compare with")
    return 100 * (ours / theirs - 1)


def _row(information: str, label: str, gains_pct: Sequence[float]) -> dict[str, Value]:
    return {
        "information": information,
        "setting": label,
        "days": len(gains_pct),
        "gain_mean_pct": fmean(gains_pct),
        "gain_median_pct": median(gains_pct),
        "gain_worst_day_pct": min(gains_pct),
        "days_behind": sum(gain < 0 for gain in gains_pct),
    }
