"""`auction` against `pdftsp` and its printed form, by planned welfare, on days with seeds of their own."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from bench.auction.comparison import AuctionRuns, proven_ratio_of
from bench.auction.scope import NewDays
from bench.auction.trials import DECLARED, DEFAULT, AuctionTrial
from bench.figures import Measurement, Result, Table, Value
from infra.errors import CommandError

OTHERS = (DECLARED, "published")


def kinds_trials(days: NewDays) -> list[AuctionTrial]:
    """Return a trial of each contender on every day."""
    return [
        AuctionTrial(setting, seed, name)
        for setting in days.settings.values()
        for seed in days.seeds
        for name in (DEFAULT, *OTHERS)
    ]


def kinds_result(days: NewDays, runs: AuctionRuns) -> Result:
    """Return the mean and the worst gain of `auction` over `pdftsp`, and both proven ratios; with a row by
    arrivals and rival.

    Raises:
        CommandError: a rival has no welfare on a day.
    """
    gains = {
        (arrivals, rival): _gains_pct(days, runs, arrivals, rival)
        for arrivals in days.settings
        for rival in OTHERS
    }
    over_pdftsp = [gain for (_, rival), each in gains.items() if rival == DECLARED for gain in each]
    ratios = _proven_ratios(days, runs, tuple(days.settings), DEFAULT)
    arrivals = f"planned welfare, {', '.join(days.settings)} arrivals, seeds from {days.seeds[0]} on"
    behind = f"{sum(gain < 0 for gain in over_pdftsp)} of {len(over_pdftsp)} days are below 0"
    figures = {
        "auction_over_pdftsp_pct": (fmean(over_pdftsp), behind),
        "auction_over_pdftsp_worst_day_pct": (min(over_pdftsp), "the worst day"),
        "auction_proven_ratio_worst_day": (max(ratios), "the worst day"),
    }
    return Result(
        tuple(
            Measurement(name, value, f"{arrivals}; {note}", len(ratios))
            for name, (value, note) in figures.items()
        ),
        (Table("kinds", [_row(days, runs, *key, each) for key, each in gains.items()]),),
    )


def _gains_pct(days: NewDays, runs: AuctionRuns, arrivals: str, rival: str) -> list[float]:
    """Return the gain of each day."""
    found = []
    for seed in days.seeds:
        ours, theirs = (
            runs.of(AuctionTrial(days.settings[arrivals], seed, name))["planned_welfare_micros"]
            for name in (DEFAULT, rival)
        )
        if theirs <= 0:
            raise CommandError(f"{arrivals} arrivals, seed {seed}: {rival} has no welfare to compare with")
        found.append(100 * (ours / theirs - 1))
    return found


def _row(
    days: NewDays, runs: AuctionRuns, arrivals: str, rival: str, gains_pct: Sequence[float]
) -> Mapping[str, Value]:
    return {
        "arrivals": arrivals,
        "rival": rival,
        "days": len(gains_pct),
        "gain_mean_pct": fmean(gains_pct),
        "gain_median_pct": median(gains_pct),
        "gain_worst_day_pct": min(gains_pct),
        "days_behind": sum(gain < 0 for gain in gains_pct),
        "worst_proven_ratio": max(_proven_ratios(days, runs, (arrivals,), rival)),
        "worst_proven_ratio_of_auction": max(_proven_ratios(days, runs, (arrivals,), DEFAULT)),
    }


def _proven_ratios(days: NewDays, runs: AuctionRuns, arrivals: Sequence[str], name: str) -> list[float]:
    return [
        proven_ratio_of(runs, AuctionTrial(days.settings[each], seed, name))
        for each in arrivals
        for seed in days.seeds
    ]
