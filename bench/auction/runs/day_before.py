"""The day before: a day of the same setting that a contender may learn from, and is not judged by."""

from dataclasses import replace

from bench.auction.runs.hindsight import hindsight_of
from bench.workloads.arrivals import JobsBefore, TraceArrivals
from bench.workloads.cell import SLOT_S
from bench.workloads.paper import PaperSetting
from schemas.policies import OpeningPrices
from solvers.auction.calendar import Calendar
from solvers.auction.forecast import forecast_opening_prices

_APART = 1_000_000
"""Far beyond the seeds of days that are judged."""


def day_before(setting: PaperSetting, seed: int) -> tuple[PaperSetting, int]:
    """What to draw for the day before that of `seed`, as setting and seed.

    All of it has a seed of its own, but real arrivals are the jobs directly before the judged ones.
    """
    if isinstance(setting.trace, TraceArrivals):
        setting = replace(setting, trace=JobsBefore(setting.trace, seed, setting.trace.jobs))
    return setting, _APART + seed


def forecast(setting: PaperSetting, seed: int) -> tuple[OpeningPrices, ...]:
    """Opening prices for a day of a setting, from the day before it."""
    return forecast_opening_prices(hindsight_of(*day_before(setting, seed)), Calendar(0.0, SLOT_S))
