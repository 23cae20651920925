"""The day before: a day of the same setting that a contender may learn from, and is not judged by."""

from bench.auction.runs.hindsight import hindsight_of
from bench.workloads.cell import SLOT_S
from bench.workloads.paper import PaperSetting
from schemas.policies import OpeningPrices
from solvers.auction.calendar import Calendar
from solvers.auction.forecast import forecast_opening_prices

_APART = 1_000_000
"""Far beyond the seeds of days that are judged."""


def day_before(seed: int) -> int:
    """The seed of the day before that of `seed`."""
    return _APART + seed


def forecast(setting: PaperSetting, seed: int) -> tuple[OpeningPrices, ...]:
    """Opening prices for a day of a setting, from the day before it."""
    return forecast_opening_prices(hindsight_of(setting, day_before(seed)), Calendar(0.0, SLOT_S))
