"""A measured day with days before it in the same ledger."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from bench.auction.runs.contenders import APART, CONTENDERS, DEFAULT, day_before
from bench.auction.runs.day import simulate
from bench.workloads.paper import PaperSetting, SeededSetting, draw_days
from infra.errors import CommandError
from infra.figures.auction.figures import AuctionFigures, certified
from infra.simulation.simulator import SimulatedRun
from schemas.auction.evidence import Certificate
from schemas.auction.settings import AuctionPolicy
from schemas.decisions import JobOutcome
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings


def simulate_last_day(
    earlier: Sequence[SeededSetting], day: SeededSetting, policy_of: Callable[[AuctionPolicy], PolicySettings]
) -> dict[str, float]:
    """Run days in one cell, and measure the last.

    Returns:
        The realised welfare of its jobs and of those before (`welfare_micros`, `before_welfare_micros`), and
        values of all days together: the bids, the wall time, and the ratio of the last certificate.

    Raises:
        CommandError: as for `simulate_day`; or a job of an earlier day was not over when the last began.
    """
    drawn = draw_days(earlier, day)
    days = simulate(drawn.cell, drawn.inputs, policy_of)
    before_micros = welfare_before(days.run, drawn.earlier_job_ids)
    figures = days.summary.part(AuctionFigures)
    return {
        "welfare_micros": figures.realised_welfare_micros - before_micros,
        "before_welfare_micros": before_micros,
        "bids": days.summary.jobs,
        "wall_s": days.wall_s,
        **({} if figures.proven_ratio is None else {"proven_ratio": figures.proven_ratio}),
    }


def welfare_before(run: SimulatedRun, earlier_job_ids: Collection[str]) -> int:
    """Return the welfare in the certificates before the first bid of the last day, in micros.

    Welfare is a sum over jobs, and jobs that are over add no more to it, so the rest is that of the last day.

    Raises:
        CommandError: a job of an earlier day was not over then.
    """
    last_begins = next(
        (
            entry.envelope.id
            for entry in run.ledger
            if isinstance(bid := entry.envelope.event, JobSubmitted) and bid.job_id not in earlier_job_ids
        ),
        None,
    )
    causes = [decision.cause for decision in run.decisions]
    begun = causes.index(last_begins) if last_begins in causes else len(causes)
    latest: dict[str, Certificate] = {}
    for decision in run.decisions[:begun]:
        latest |= certified(decision.outcome)
    for decision in run.decisions[begun:]:
        outcome = decision.outcome
        if isinstance(outcome, JobOutcome) and outcome.job_id in earlier_job_ids:
            raise CommandError(f"job {outcome.job_id} of an earlier day was not over when the last began")
    return sum(certificate.realised_welfare_micros for certificate in latest.values())


FACTOR = 4.0
"""Factor by which a day differs from the day before."""


def _of_load(factor: float) -> Callable[[PaperSetting], PaperSetting]:
    return lambda setting: replace(setting, arrivals_per_slot=factor * setting.arrivals_per_slot)


def _of_value(factor: float) -> Callable[[PaperSetting], PaperSetting]:
    def changed(setting: PaperSetting) -> PaperSetting:
        median_units = factor * setting.density.median_units
        return replace(setting, density=replace(setting.density, median_units=median_units))

    return changed


UNLIKE_DAYS: Mapping[str, Callable[[PaperSetting], PaperSetting]] = MappingProxyType(
    {
        f"{FACTOR:g} times the load": _of_load(FACTOR),
        f"1/{FACTOR:g} of the load": _of_load(1 / FACTOR),
        f"{FACTOR:g} times the value": _of_value(FACTOR),
        f"1/{FACTOR:g} of the value": _of_value(1 / FACTOR),
    }
)
"""Kinds of the day before, for settings with drawn arrivals: a trace has a fixed number of jobs."""
SECOND_DAY = f"{DEFAULT}, second day"
"""The default after a day of the same kind."""
AFTER = MappingProxyType({unlike: f"{DEFAULT}, after {unlike}" for unlike in UNLIKE_DAYS})
"""The default after a day of another kind, by kind."""
KINDS_BEFORE: Mapping[str, Callable[[PaperSetting], PaperSetting]] = MappingProxyType(
    {SECOND_DAY: lambda setting: setting, **{AFTER[unlike]: of for unlike, of in UNLIKE_DAYS.items()}}
)
"""Functions from a setting to that of the day before, by contender."""
FOURTH_DAY = f"{DEFAULT}, fourth day"
"""The default after three days of the same kind, when it has learned the busy hours."""
_EARLIER_DAYS = 3


def default_second_day(
    kind_before: Callable[[PaperSetting], PaperSetting], setting: PaperSetting, seed: int
) -> dict[str, float]:
    """Run the default on a day of a setting, after a day of a given kind."""
    return _default_after([day_before(kind_before(setting), seed)], setting, seed)


def default_fourth_day(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Run the default on a day of a setting with drawn arrivals, after three others."""
    days = [(setting, APART * (1 + number) + seed) for number in range(_EARLIER_DAYS)]
    return _default_after(days, setting, seed)


def _default_after(earlier: Sequence[SeededSetting], setting: PaperSetting, seed: int) -> dict[str, float]:
    return simulate_last_day(
        earlier, (setting, seed), lambda declared: CONTENDERS[DEFAULT](declared, setting, seed)
    )
