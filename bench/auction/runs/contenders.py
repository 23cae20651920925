"""Who is compared: each contender is a policy made from the one that the setting's operator declares."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from bench.auction.runs.day_before import forecast
from bench.auction.runs.fixed_price import tuned_price_micros
from bench.workloads.paper import PaperSetting
from schemas.policies import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    OpeningPrices,
    Policy,
    TitanPolicy,
)

Contender = Callable[[AuctionPolicy, PaperSetting, int], Policy]
"""(declared policy, setting, seed) -> policy."""

TITAN_TIME_LIMIT_S = 60.0
"""Per slot, and then the best plans found count; plans proven within 1 % of the best end a solve sooner."""

PUBLISHED = MappingProxyType({"payment": "published", "order": "published", "search": "published"})
"""The auction as it is printed; all else that can be chosen of it is at its default already."""
IMPROVEMENTS = MappingProxyType(
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

    def contender(declared: AuctionPolicy, setting: PaperSetting, seed: int) -> Policy:
        values = {
            field: value(setting, seed) if callable(value) else value for field, value in fields.items()
        }
        return declared.model_copy(update=values)

    return contender


def _fixed_price(declared: AuctionPolicy, setting: PaperSetting, seed: int) -> Policy:  # noqa: ARG001
    return FixedPricePolicy(
        kind="fixed_price", price_per_thousand_samples_micros=tuned_price_micros(setting, seed)
    )


CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        "pdftsp": _improved(*IMPROVEMENTS),
        "published": _improved(),
        "titan": lambda *_: TitanPolicy(kind="titan", time_limit_s=TITAN_TIME_LIMIT_S),
        "eft": lambda *_: EarliestFinishPolicy(kind="eft"),
        "ntm": lambda *_: NoMergingPolicy(kind="ntm"),
        "fixed_price": _fixed_price,
        **{contender: _improved(name) for name, contender in ADDED.items()},
        **{contender: _improved(*(IMPROVEMENTS.keys() - {name})) for name, contender in REMOVED.items()},
        **{contender: _misled(MISFORECASTS[name]) for name, contender in MISLED.items()},
    }
)
