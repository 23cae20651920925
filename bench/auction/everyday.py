"""The auction with nothing declared: at any load, from an empty ledger and after other days.

Its rivals have more information: the tuned auction has a forecast from the day before, and the fixed price is
the best for the day itself. None of them uses earlier days, so their later days equal their first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.auction.comparison import OURS, AuctionRuns
from bench.auction.runs.contenders import DEFAULT, HINDSIGHT_PRICE
from bench.auction.runs.later_days import AFTER, FOURTH_DAY, SECOND_DAY
from bench.auction.runs.trials import AuctionTrial
from bench.charts import Lines
from bench.figures import Measurement, Result, Table, Value
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError

RIVALS = ("eft", "titan", OURS, HINDSIGHT_PRICE)

EVERYDAY_LOADS = (0.2, 0.5, 1.0, 2.0, 4.0)
HIGH_LOAD = EVERYDAY_LOADS[-1]
TUNED_LOADS = (2.0, 4.0)
"""Loads for which the auction's constants were tuned: docs/workloads/auction-paper.md."""

DRAWN = "Poisson"
"""Name of drawn arrivals."""
WORKING_DAY = "working day"
"""Name of arrivals of a day with a night."""
NIGHT_PART = 1 / 20
"""Arrivals per slot from 18 to 8 o'clock, as a part of those from 8 to 18."""
WORKING_LOADS = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class EverydayLoad:
    """A kind of day."""

    arrivals: str
    """`DRAWN`, or the name of a trace."""
    load: float
    """Demand over the fleet's capacity: see `arrivals_for_load`."""
    deviation: float
    """Deviation of the logarithm of users' values."""
    setting: PaperSetting

    def __str__(self) -> str:
        return f"{self.series}, load {self.load:g}"

    @property
    def series(self) -> str:
        """Description without the load."""
        return f"{self.arrivals}, deviation {self.deviation:g}"


@dataclass(frozen=True)
class Everyday:
    """Extent of the comparison."""

    loads: tuple[EverydayLoad, ...]
    seeds: tuple[int, ...]
    skipped: tuple[str, ...] = ()
    """Reasons why traces are absent, one line each."""

    @property
    def drawn(self) -> list[EverydayLoad]:
        """Loads that can follow a day of another kind."""
        return [load for load in self.loads if load.arrivals == DRAWN]


def trials_of(everyday: Everyday) -> list[AuctionTrial]:
    """Return a trial for every contender on every day."""
    names = (DEFAULT, SECOND_DAY, *RIVALS)
    like = [(load, name) for load in everyday.loads for name in names]
    unlike = [(load, name) for load in everyday.drawn for name in AFTER.values()]
    return [AuctionTrial(load.setting, seed, name) for load, name in like + unlike for seed in everyday.seeds]


@dataclass(frozen=True)
class Gain:
    """Gain of a contender over another on the same days."""

    pct: float | None
    """Mean over the counted days; None without any."""
    left_out: int
    """Days without a ratio: the other has no welfare, and the contender at least as much."""


class DailyWelfare:
    """Welfare of each day."""

    def __init__(self, runs: AuctionRuns, seeds: Sequence[int]) -> None:
        self._runs = runs
        self._seeds = seeds

    def gain(self, load: EverydayLoad, ours: str, theirs: str) -> Gain:
        """Return the gain in welfare of `ours` over `theirs`.

        Raises:
            CommandError: `theirs` has no welfare on a day, and `ours` less.
        """
        gains = []
        for seed in self._seeds:
            mine, other = self._of(load, ours, seed), self._of(load, theirs, seed)
            if other > 0:
                gains.append(100 * (mine / other - 1))
            elif mine < other:
                raise CommandError(
                    f"{load}, seed {seed}: welfare of {ours} is {mine:.0f} micros and of {theirs} "
                    f"{other:.0f}, nothing to compare with: try a larger setting"
                )
        return Gain(fmean(gains) if gains else None, len(self._seeds) - len(gains))

    def part(self, load: EverydayLoad, name: str, whole: str) -> float:
        """Return the mean welfare of one contender as a part of another's.

        Raises:
            CommandError: the other has no welfare on a day.
        """
        parts = []
        for seed in self._seeds:
            if (divisor := self._of(load, whole, seed)) <= 0:
                raise CommandError(
                    f"{load}, seed {seed}: welfare of {whole} is {divisor:.0f} micros, nothing to compare "
                    "with: try a larger setting"
                )
            parts.append(self._of(load, name, seed) / divisor)
        return fmean(parts)

    def proven_ratios(self, load: EverydayLoad) -> list[float]:
        """Return the ratio of each first day, from the last certificate.

        Raises:
            CommandError: a day has no welfare, and so no ratio.
        """
        values = [self._runs.of(AuctionTrial(load.setting, seed, DEFAULT)) for seed in self._seeds]
        for seed, value in zip(self._seeds, values, strict=True):
            if "proven_ratio" not in value:
                raise CommandError(f"{load}, seed {seed}: without welfare there is no ratio: try more load")
        return [value["proven_ratio"] for value in values]

    def _of(self, load: EverydayLoad, name: str, seed: int) -> float:
        return self._runs.of(AuctionTrial(load.setting, seed, name))["welfare_micros"]


def everyday(days: Everyday, runs: AuctionRuns) -> Result:
    """Return the figures of everyday loads, and a row per load.

    Raises:
        CommandError: there is no welfare to compare with.
    """
    welfare = DailyWelfare(runs, days.seeds)
    gains = tuple(f"over_{rival}_pct" for rival in RIVALS)
    columns = ("workload", "load", *gains, f"second_day_{gains[-1]}", "worst_loss_pct", "worst_proven_ratio")
    lines: list[tuple[Value, ...]] = [
        (
            load.series,
            load.load,
            *(welfare.gain(load, DEFAULT, rival).pct for rival in RIVALS),
            welfare.gain(load, SECOND_DAY, HINDSIGHT_PRICE).pct,
            max(_losses_pct(load, welfare).values()) if load in days.drawn else None,
            max(welfare.proven_ratios(load)),
        )
        for load in days.loads
    ]
    chart = Lines("workload", "load", columns[-1:], "worst proven ratio", "load")
    return Result(_measurements(days, welfare), (Table("everyday", columns, lines, chart),))


def _losses_pct(load: EverydayLoad, welfare: DailyWelfare) -> dict[str, float]:
    """Return the loss through a day of another kind before, by that kind (%)."""
    return {unlike: 100 * (1 - welfare.part(load, contender, DEFAULT)) for unlike, contender in AFTER.items()}


def _measurements(everyday: Everyday, welfare: DailyWelfare) -> tuple[Measurement, ...]:
    high = [load for load in everyday.loads if load.load == HIGH_LOAD]
    tuned = [load for load in everyday.loads if load.load in TUNED_LOADS]
    seeds = len(everyday.seeds)

    def least(name: str, ours: str, theirs: str) -> Measurement:
        return _least_gain(name, _gains_of(welfare, everyday.loads, ours, theirs), seeds)

    def mean(name: str, theirs: str, loads: Sequence[EverydayLoad]) -> Measurement:
        return _mean(name, _gains_of(welfare, loads, DEFAULT, theirs), seeds)

    return (
        least("default_over_eft_min_pct", DEFAULT, "eft"),
        least("default_over_titan_min_pct", DEFAULT, "titan"),
        least("default_over_fixed_hindsight_min_pct", DEFAULT, HINDSIGHT_PRICE),
        least("default_over_fixed_hindsight_second_day_min_pct", SECOND_DAY, HINDSIGHT_PRICE),
        mean("default_over_fixed_hindsight_high_load_pct", HINDSIGHT_PRICE, high),
        mean("default_over_tuned_pct", OURS, tuned),
        _worst_loss(everyday, welfare),
        _worst_ratio(everyday, welfare),
    )


def _gains_of(
    welfare: DailyWelfare, loads: Sequence[EverydayLoad], ours: str, theirs: str
) -> dict[EverydayLoad, Gain]:
    """Return the gain at each load; see `DailyWelfare.gain`."""
    return {load: welfare.gain(load, ours, theirs) for load in loads}


def _least_gain(name: str, gains: Mapping[EverydayLoad, Gain], seeds: int) -> Measurement:
    """Return the least of the means over days, with its load.

    Raises:
        CommandError: no day has welfare to compare with.
    """
    counted = _counted(name, gains)
    worst = min(counted, key=lambda load: counted[load])
    lost = sum(pct < 0 for pct in counted.values())
    note = (
        f"least of the means of {len(counted)} loads, {seeds} days each: {worst}; {lost} of the means are "
        f"below 0{_left_out(gains)}"
    )
    return Measurement(name, counted[worst], note, _days(gains, seeds))


def _mean(name: str, gains: Mapping[EverydayLoad, Gain], seeds: int) -> Measurement:
    counted = _counted(name, gains)
    worst = min(counted, key=lambda load: counted[load])
    loads = ", ".join(f"{load:g}" for load in sorted({load.load for load in counted}))
    note = (
        f"mean of {len(counted)} workloads at load {loads}, {seeds} days each; the least "
        f"{counted[worst]:.3g}: {worst}{_left_out(gains)}"
    )
    return Measurement(name, fmean(counted.values()), note, _days(gains, seeds))


def _counted(name: str, gains: Mapping[EverydayLoad, Gain]) -> dict[EverydayLoad, float]:
    counted = {load: gain.pct for load, gain in gains.items() if gain.pct is not None}
    if not counted:
        raise CommandError(f"{name}: no day has welfare to compare with: try a larger setting")
    return counted


def _left_out(gains: Mapping[EverydayLoad, Gain]) -> str:
    days = sum(gain.left_out for gain in gains.values())
    return f"; {days} days are left out, on which the other brings no welfare" if days else ""


def _days(gains: Mapping[EverydayLoad, Gain], seeds: int) -> int:
    return seeds * len(gains) - sum(gain.left_out for gain in gains.values())


def _worst_loss(everyday: Everyday, welfare: DailyWelfare) -> Measurement:
    losses = {
        (load, unlike): loss for load in everyday.drawn for unlike, loss in _losses_pct(load, welfare).items()
    }
    load, unlike = worst = max(losses, key=lambda day: losses[day])
    seeds = len(everyday.seeds)
    note = (
        f"largest of {len(losses)} means, {seeds} days each: {load}, after {unlike}; against the same days "
        "from an empty ledger"
    )
    return Measurement("wrong_forecast_loss_pct", losses[worst], note, seeds * len(losses))


def _worst_ratio(everyday: Everyday, welfare: DailyWelfare) -> Measurement:
    ratios = {load: welfare.proven_ratios(load) for load in everyday.loads}
    worst = max(ratios, key=lambda load: max(ratios[load]))
    days = sum(map(len, ratios.values()))
    note = (
        f"by the live certificate: the worst of {days} single days, from an empty ledger: {worst}; mean of "
        f"all {fmean(ratio for each in ratios.values() for ratio in each):.3g}"
    )
    return Measurement("default_proven_ratio_worst", max(ratios[worst]), note, days)


_OTHER_DAYS = (DEFAULT, SECOND_DAY, "eft", HINDSIGHT_PRICE)


def trials_of_working_days(days: Everyday) -> list[AuctionTrial]:
    """Return a trial for every contender on every day with a night."""
    return [
        AuctionTrial(load.setting, seed, name)
        for load in days.loads
        for name in (FOURTH_DAY, *_OTHER_DAYS)
        for seed in days.seeds
    ]


def working_days(days: Everyday, runs: AuctionRuns) -> Result:
    """Return the gains of a fourth day with a night, when the auction has learned the hours, over the first
    day and over the best fixed price of the day itself.

    Raises:
        CommandError: there is no welfare to compare with.
    """
    welfare = DailyWelfare(runs, days.seeds)
    columns = ("workload", "load", "first_day_part", "second_day_part", "eft_part", f"{HINDSIGHT_PRICE}_part")
    lines: list[tuple[Value, ...]] = [
        (load.series, load.load, *(welfare.part(load, other, FOURTH_DAY) for other in _OTHER_DAYS))
        for load in days.loads
    ]
    label = f"welfare / of the fourth day, mean of {len(days.seeds)} days"
    return Result(
        tuple(
            _least_gain(name, _gains_of(welfare, days.loads, FOURTH_DAY, other), len(days.seeds))
            for name, other in (
                ("fourth_day_over_first_min_pct", DEFAULT),
                ("fourth_day_over_fixed_hindsight_min_pct", HINDSIGHT_PRICE),
            )
        ),
        (Table("working_days", columns, lines, Lines("workload", "load", columns[2:3], label, "load")),),
    )
