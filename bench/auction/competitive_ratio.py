"""Distance of the auction from the best schedule in hindsight: Figure 12, and the proven ratio at high load.
Decision times: Figure 13."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.auction.comparison import OURS, PUBLISHED_RATIO_AT_MOST, AuctionRuns, proven_ratio_of
from bench.auction.scope import Figure, Point
from bench.auction.trials import CLEARING_BOUND, DEFAULT, OPTIMUM, TITANS_PROGRAM, AuctionTrial
from bench.figures import Measurement, Result, Table
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError

LARGEST_GAP = 0.01
"""Largest gap between the bound on the optimum and the best plans found: days with a wider one are listed but
not counted."""
_UNIT_MICROS = 1e6


@dataclass(frozen=True)
class Competed:
    """Auction and optimum of one day."""

    setting: str
    seed: int
    online_micros: float
    optimum_micros: float
    """Welfare of the best plans found."""
    bound_micros: float
    """Upper bound on the welfare of all plans."""
    gap: float

    @property
    def ratio(self) -> float:
        """Upper bound divided by the welfare of the auction's plans: at least the optimum divided by it."""
        return self.bound_micros / self.online_micros

    @property
    def counts(self) -> bool:
        """Whether the gap to the optimum is small enough."""
        return self.gap <= LARGEST_GAP


def trials_of(figure: Figure, seeds: Sequence[int]) -> list[AuctionTrial]:
    """Return trials of the auction and the optimum on every day."""
    return [
        AuctionTrial(point.setting, seed, name)
        for point in figure.points
        for seed in seeds
        for name in (DEFAULT, OPTIMUM)
    ]


def competitive_ratio(figure: Figure, seeds: Sequence[int], runs: AuctionRuns, name: str) -> Result:
    """Return `<name>_mean` and `<name>_worst` over the counted days, and the table `figure_12_<name>` of all.

    Raises:
        CommandError: the auction has no welfare on a day, so that there is no ratio.
    """
    days = []
    for point in figure.points:
        for seed in seeds:
            optimum = runs.of(AuctionTrial(point.setting, seed, OPTIMUM))
            trial = AuctionTrial(point.setting, seed, DEFAULT)
            online = runs.of(trial)
            if online["planned_welfare_micros"] <= 0:
                raise CommandError(f"{trial}: without welfare there is no ratio: try a larger setting")
            days.append(
                Competed(
                    point.label,
                    seed,
                    online["planned_welfare_micros"],
                    optimum["welfare_micros"],
                    optimum["bound_micros"],
                    optimum["gap"],
                )
            )
    return Result(_measurements(name, days), (_table(f"figure_12_{name}", figure, days),))


def proven_ratio(high: PaperSetting, seeds: Sequence[int], runs: AuctionRuns) -> Measurement:
    """Return `proven_ratio_high_load`: dual bound over planned welfare, from the cell's last decisions.

    Raises:
        CommandError: the auction has no welfare on a day, so that there is no ratio.
    """
    live, afterwards = [], []
    for seed in seeds:
        trial = AuctionTrial(high, seed, DEFAULT)
        live.append(proven_ratio_of(runs, trial))
        bound_micros = runs.of(AuctionTrial(high, seed, CLEARING_BOUND))["bound_micros"]
        afterwards.append(bound_micros / runs.of(trial)["planned_welfare_micros"])
    note = (
        f"by the live certificate: mean of {len(seeds)} days, the worst {max(live):.3g}; by the prices "
        f"that clear the day in hindsight {fmean(afterwards):.3g}, the worst {max(afterwards):.3g}; "
        f"{high.arrivals_per_slot:g} arrivals per slot, {high.nodes} nodes"
    )
    return Measurement("proven_ratio_high_load", fmean(live), note, len(seeds))


def _measurements(name: str, days: Sequence[Competed]) -> tuple[Measurement, ...]:
    ratios = [day.ratio for day in days if day.counts]
    if not ratios:
        return ()
    left_out = len(days) - len(ratios)
    note = (
        f"proven upper bound of the optimum over online welfare, {len(ratios)} days; {left_out} more are "
        f"left out, whose optimum is not known within {LARGEST_GAP:.0%}; the paper's are at most "
        f"{PUBLISHED_RATIO_AT_MOST:g}"
    )
    return (
        Measurement(f"{name}_mean", fmean(ratios), note, len(ratios)),
        Measurement(f"{name}_worst", max(ratios), note, len(ratios)),
    )


def _table(name: str, figure: Figure, days: Sequence[Competed]) -> Table:
    return Table(
        name,
        [
            {
                figure.axis: day.setting,
                "seed": day.seed,
                "ratio": day.ratio,
                "counted": "yes" if day.counts else f"no: gap above {LARGEST_GAP:.0%}",
                "online_units": day.online_micros / _UNIT_MICROS,
                "optimum_units": day.optimum_micros / _UNIT_MICROS,
                "bound_units": day.bound_micros / _UNIT_MICROS,
                "gap_pct": 100 * day.gap,
            }
            for day in days
        ],
    )


TITAN = "titan"


def runtime_trials(points: Sequence[Point], high: PaperSetting, seed: int) -> list[AuctionTrial]:
    """Return trials of the auction and of Titan, each alone, by number of nodes."""
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
        times = {OURS: at.ours, TITAN: at.titan, TITANS_PROGRAM: at.program}
        seconds = {f"{name}_s_per_bid": per_bid_s for name, per_bid_s in times.items()}
        lines.append({"nodes": point.setting.nodes, **seconds, "ratio": at.program / at.ours})
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
    return Result(measurements, (Table("figure_13", lines),))


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
