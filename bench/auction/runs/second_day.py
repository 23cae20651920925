"""A day that is judged with the day before it in the same ledger."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from bench.auction.runs.contenders import CONTENDERS, DEFAULT, day_before
from bench.auction.runs.day import simulate
from bench.workloads.paper import PaperSetting
from bench.workloads.two_days import SeededSetting, draw_two_days
from infra.errors import CommandError
from infra.simulation.simulator import SimulatedRun
from infra.views.auction.figures import AuctionFigures, certified
from schemas.auction.evidence import Certificate
from schemas.auction.settings import AuctionPolicy
from schemas.decisions import JobOutcome
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings


def simulate_second_day(
    before: SeededSetting, day: SeededSetting, policy_of: Callable[[AuctionPolicy], PolicySettings]
) -> dict[str, float]:
    """Run two days in one cell, and judge the second.

    Returns:
        The realised welfare of each day's jobs (`before_welfare_micros`, `welfare_micros`), and what a row
        keeps of both days together: the bids, the wall time, and the ratio that the last certificate states.

    Raises:
        CommandError: as for `simulate_day`; or a job of the first day was not over when the second began.
    """
    drawn = draw_two_days(before, day)
    both = simulate(drawn.cell, drawn.inputs, policy_of)
    first_micros = welfare_of_first_day(both.run, drawn.first_job_ids)
    figures = both.summary.part(AuctionFigures)
    return {
        "welfare_micros": figures.realised_welfare_micros - first_micros,
        "before_welfare_micros": first_micros,
        "bids": both.summary.jobs,
        "wall_s": both.wall_s,
        **({} if figures.proven_ratio is None else {"proven_ratio": figures.proven_ratio}),
    }


def welfare_of_first_day(run: SimulatedRun, first_job_ids: Collection[str]) -> int:
    """What the certificates stated before the first bid that is not of the first day, in micros.

    Welfare is a sum over jobs, and jobs that are over add no more to it: so the rest is that of the others.

    Raises:
        CommandError: a job of the first day was not over then.
    """
    second_bid = next(
        (
            entry.envelope.id
            for entry in run.ledger
            if isinstance(bid := entry.envelope.event, JobSubmitted) and bid.job_id not in first_job_ids
        ),
        None,
    )
    causes = [decision.cause for decision in run.decisions]
    begun = causes.index(second_bid) if second_bid in causes else len(causes)
    latest: dict[str, Certificate] = {}
    for decision in run.decisions[:begun]:
        latest |= certified(decision.outcome)
    for decision in run.decisions[begun:]:
        outcome = decision.outcome
        if isinstance(outcome, JobOutcome) and outcome.job_id in first_job_ids:
            raise CommandError(f"job {outcome.job_id} of the first day was not over when the second began")
    return sum(certificate.realised_welfare_micros for certificate in latest.values())


FACTOR = 4.0
"""By which a day is unlike the day before."""


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
"""Days before, of settings whose arrivals are drawn: a trace has as many jobs as it has."""
SECOND_DAY = f"{DEFAULT}, second day"
"""The default with a day of the kind before it."""
AFTER = MappingProxyType({unlike: f"{DEFAULT}, after {unlike}" for unlike in UNLIKE_DAYS})
"""The default with such a day before it."""
KINDS_BEFORE: Mapping[str, Callable[[PaperSetting], PaperSetting]] = MappingProxyType(
    {SECOND_DAY: lambda setting: setting, **{AFTER[unlike]: of for unlike, of in UNLIKE_DAYS.items()}}
)
"""What the day before is drawn from, by contender."""


def default_second_day(
    kind_before: Callable[[PaperSetting], PaperSetting], setting: PaperSetting, seed: int
) -> dict[str, float]:
    """The default on a day of a setting, after a day of such a kind."""
    before = day_before(kind_before(setting), seed)
    return simulate_second_day(
        before, (setting, seed), lambda declared: CONTENDERS[DEFAULT](declared, setting, seed)
    )
