"""The contenders: policies derived from the declared one, or learned from the day before."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bench.auction.runs.day import Day, simulate, simulate_day
from bench.auction.runs.hindsight_price import best_price, break_even_prices
from bench.auction.runs.optimum import hindsight_of
from bench.workloads.arrivals import JobsBefore, TraceArrivals
from bench.workloads.cell import SLOT_S
from bench.workloads.paper import PaperSetting, draw
from bench.workloads.tasks import FASTEST
from bench.workloads.throughput import node_samples_per_s
from bench.workloads.vendors import UNIT_MICROS
from infra.views.auction.figures import AuctionFigures
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
"""Far beyond the seeds of days that are judged."""


def day_before(setting: PaperSetting, seed: int) -> tuple[PaperSetting, int]:
    """What to draw for the day before that of `seed`, as setting and seed.

    All of it has a seed of its own, but real arrivals are the jobs directly before the judged ones.
    """
    if isinstance(setting.trace, TraceArrivals):
        setting = replace(setting, trace=JobsBefore(setting.trace, seed, setting.trace.jobs))
    return setting, APART + seed


def forecast(setting: PaperSetting, seed: int) -> tuple[OpeningPrices, ...]:
    """Opening prices for a day of a setting, from the day before it."""
    return forecast_opening_prices(hindsight_of(*draw(*day_before(setting, seed))), Calendar(0.0, SLOT_S))


QUANTILES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9)
"""Of the declared density of value, at which prices are tried: from hardly above free, to where one user in
ten buys."""
SHRUNK = 4
"""The best price hardly depends on the size of a fleet, so a large one is tried so many times smaller."""
LEAST_NODES = 10


def tuned_price_micros(setting: PaperSetting, seed: int) -> int:
    """The price per thousand samples that would have brought the most welfare the day before; ties low."""
    thousands_per_node_slot = node_samples_per_s(FASTEST) * SLOT_S / 1_000
    prices = [
        round(UNIT_MICROS * setting.density.quantile(part) / thousands_per_node_slot) for part in QUANTILES
    ]
    before, seed_before = day_before(setting, seed)
    tried = _smaller(before) if setting.nodes >= SHRUNK * LEAST_NODES else before
    return max(prices, key=lambda price: (_welfare_micros(tried, seed_before, price), -price))


def _smaller(setting: PaperSetting) -> PaperSetting:
    """Fewer nodes, and as many fewer tasks."""
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
"""(declared policy, setting, seed) -> policy."""

TITAN_TIME_LIMIT_S = 60.0
"""Per slot, and then the best plans found count; plans proven within 1 % of the best end a solve sooner."""

PUBLISHED = MappingProxyType({"payment": "published", "order": "published", "search": "published"})
"""The auction as it is printed; all else that can be chosen of it is at its default already."""
IMPROVEMENTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "exact search": {"search": "exact"},
        "room-aware order": {"order": "room_first"},
        "critical payment": {"payment": "critical"},
        "learned steepness": {"steepness": "learned"},
        "opening prices": {"opening_prices": forecast},
    }
)
"""What sets the auction apart from its printed form, one by one: a value, or what makes one of setting and
seed. All together are the auction at its best."""
ADDED = MappingProxyType({name: f"published + {name}" for name in IMPROVEMENTS})
"""The contender with this one improvement alone."""
REMOVED = MappingProxyType({name: f"pdftsp - {name}" for name in IMPROVEMENTS})
"""The contender with all the others."""
MISFORECASTS = MappingProxyType({"half the arrivals": 0.5, "twice the arrivals": 2.0})
"""Days that a forecast may be for, by how many times the day's own arrivals they have."""
MISLED = MappingProxyType({name: f"pdftsp, foreseeing {name}" for name in MISFORECASTS})
"""The contender with all improvements and such a forecast."""


def _misled(factor: float) -> Contender:
    """The auction at its best, with a forecast for a day of so many times as many arrivals."""

    def misforecast(setting: PaperSetting, seed: int) -> tuple[OpeningPrices, ...]:
        return forecast(replace(setting, arrivals_per_slot=factor * setting.arrivals_per_slot), seed)

    return _improved(*IMPROVEMENTS, opening_prices=misforecast)


def _improved(*names: str, **instead: Any) -> Contender:
    """The printed auction with these improvements, some of their fields replaced."""
    improved = {field: value for name in names for field, value in IMPROVEMENTS[name].items()}
    fields = {**PUBLISHED, **improved, **instead}

    def contender(declared: AuctionPolicy, setting: PaperSetting, seed: int) -> PolicySettings:
        values = {
            field: value(setting, seed) if callable(value) else value for field, value in fields.items()
        }
        return declared.model_copy(update=values)

    return contender


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
        "pdftsp": _improved(*IMPROVEMENTS),
        "published": _improved(),
        "titan": lambda *_: TitanPolicy(kind="titan", time_limit_s=TITAN_TIME_LIMIT_S),
        "eft": lambda *_: EarliestFinishPolicy(kind="eft"),
        "ntm": lambda *_: NoMergingPolicy(kind="ntm"),
        "fixed_price": _fixed_price,
        HINDSIGHT_PRICE: _fixed_price_in_hindsight,
        **{contender: _improved(name) for name, contender in ADDED.items()},
        **{contender: _improved(*(IMPROVEMENTS.keys() - {name})) for name, contender in REMOVED.items()},
        **{contender: _misled(MISFORECASTS[name]) for name, contender in MISLED.items()},
    }
)
