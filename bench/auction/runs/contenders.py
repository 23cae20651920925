"""The contenders: policies derived from the declared one, or learned from the day before."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from bench.auction.runs.day import Day, simulate, simulate_day
from bench.auction.runs.hindsight import best_price, break_even_prices, hindsight_of
from bench.workloads.arrivals import JobsBefore, TraceArrivals
from bench.workloads.cell import SLOT_S
from bench.workloads.paper import PaperSetting, draw
from bench.workloads.tasks import FASTEST
from bench.workloads.throughput import node_samples_per_s
from bench.workloads.vendors import UNIT_MICROS
from infra.figures.auction.figures import AuctionFigures
from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    OpeningPrices,
    TitanPolicy,
)
from schemas.kind import PolicySettings
from solvers.auction.forecast import forecast_opening_prices
from solvers.auction.market.fleet import Calendar

APART = 1_000_000
"""Far beyond the seeds of measured days."""


def day_before(setting: PaperSetting, seed: int) -> tuple[PaperSetting, int]:
    """Return the setting and the seed of the day before that of `seed`.

    All of it has a seed of its own, except that real arrivals are the jobs directly before the measured ones.
    """
    if isinstance(setting.trace, TraceArrivals):
        setting = replace(setting, trace=JobsBefore(setting.trace, seed, setting.trace.jobs))
    return setting, APART + seed


def forecast(setting: PaperSetting, seed: int) -> tuple[OpeningPrices, ...]:
    """Compute opening prices for a day of a setting, from the day before it."""
    return forecast_opening_prices(hindsight_of(*draw(*day_before(setting, seed))), Calendar(0.0, SLOT_S))


QUANTILES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9)
"""Quantiles of the declared value density at which prices are tried: from almost free, to a price that one
user in ten pays."""
SHRUNK = 4
"""Factor by which a large fleet is reduced for the trials: the best price hardly depends on the size."""
LEAST_NODES = 10


def tuned_price_micros(setting: PaperSetting, seed: int) -> int:
    """Return the price per thousand samples with the most welfare on the day before; the lower one of a
    tie."""
    thousands_per_node_slot = node_samples_per_s(FASTEST) * SLOT_S / 1_000
    prices = [
        round(UNIT_MICROS * setting.density.quantile(part) / thousands_per_node_slot) for part in QUANTILES
    ]
    before, seed_before = day_before(setting, seed)
    tried = _smaller(before) if setting.nodes >= SHRUNK * LEAST_NODES else before
    return max(prices, key=lambda price: (_welfare_micros(tried, seed_before, price), -price))


def _smaller(setting: PaperSetting) -> PaperSetting:
    """Return a setting with fewer nodes, and tasks in proportion."""
    trace = setting.trace and replace(setting.trace, jobs=max(setting.trace.jobs // SHRUNK, 1))
    return replace(
        setting,
        nodes=setting.nodes // SHRUNK,
        arrivals_per_slot=setting.arrivals_per_slot / SHRUNK,
        trace=trace,
    )


def _welfare_micros(setting: PaperSetting, seed: int, price_micros: int) -> int:
    return _welfare_of(simulate_day(setting, seed, lambda _: _at_price(price_micros)))


def _welfare_of(day: Day) -> int:
    return day.summary.part(AuctionFigures).realised_welfare_micros


def _at_price(price_micros: int) -> FixedPricePolicy:
    return FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=price_micros)


Contender = Callable[[AuctionPolicy, PaperSetting, int], PolicySettings]
"""Function of (declared policy, setting, seed) that returns a policy."""

TITAN_TIME_LIMIT_S = 60.0
"""Time per slot, after which the best plans found count; a solve ends sooner if plans are proven within 1 %
of the best."""

PUBLISHED = MappingProxyType({"payment": "published", "order": "published", "search": "published"})
"""The auction as published; all its other options have their defaults already."""
IMPROVEMENTS = MappingProxyType(
    {"payment": "critical", "order": "room_first", "search": "exact", "steepness": "learned"}
)
"""Options in which the auction at its best differs from its published form, besides opening prices from a
forecast."""


def _at_best(declared: AuctionPolicy, setting: PaperSetting, seed: int) -> PolicySettings:
    return declared.model_copy(update={**IMPROVEMENTS, "opening_prices": forecast(setting, seed)})


def _fixed_price(declared: AuctionPolicy, setting: PaperSetting, seed: int) -> PolicySettings:  # noqa: ARG001
    return _at_price(tuned_price_micros(setting, seed))


def _fixed_price_in_hindsight(
    declared: AuctionPolicy,  # noqa: ARG001
    setting: PaperSetting,
    seed: int,
) -> PolicySettings:
    cell, workload = draw(setting, seed)
    inputs = workload.inputs(cell.epoch_s)
    price = best_price(
        break_even_prices(hindsight_of(cell, workload)),
        lambda price: _welfare_of(simulate(cell, inputs, lambda _: _at_price(price))),
    )
    return _at_price(price)


DEFAULT = "default"
HINDSIGHT_PRICE = "fixed_price_hindsight"

CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        DEFAULT: lambda *_: AuctionPolicy(),
        "pdftsp": _at_best,
        "published": lambda declared, *_: declared.model_copy(update=PUBLISHED),
        "titan": lambda *_: TitanPolicy(kind="titan", time_limit_s=TITAN_TIME_LIMIT_S),
        "eft": lambda *_: EarliestFinishPolicy(kind="eft"),
        "ntm": lambda *_: NoMergingPolicy(kind="ntm"),
        "fixed_price": _fixed_price,
        HINDSIGHT_PRICE: _fixed_price_in_hindsight,
    }
)
