"""Who is compared: each contender is a policy made from the one that the setting's operator declares."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from bench.auction.runs.fixed_price import tuned_price_micros
from bench.workloads.paper import PaperSetting
from schemas.policies import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    Policy,
    TitanPolicy,
)

Contender = Callable[[AuctionPolicy, PaperSetting, int], Policy]
"""(declared policy, setting, seed) -> policy."""

TITAN_TIME_LIMIT_S = 10.0
"""Per slot; a plan within 1 % of the best ends a solve sooner. The paper names no limit."""

PUBLISHED = MappingProxyType({"payment": "published", "order": "published", "search": "published"})
IMPROVEMENTS = MappingProxyType(
    {
        "exact search": {"search": "exact"},
        "room-aware order": {"order": "room_first"},
        "critical payment": {"payment": "critical"},
    }
)
"""What sets the auction apart from its printed form, one by one."""


def _changed(fields: Mapping[str, str]) -> Contender:
    return lambda declared, _setting, _seed: declared.model_copy(update=dict(fields))


def _fixed_price(declared: AuctionPolicy, setting: PaperSetting, seed: int) -> Policy:  # noqa: ARG001
    return FixedPricePolicy(
        kind="fixed_price", price_per_thousand_samples_micros=tuned_price_micros(setting, seed)
    )


CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        "pdftsp": _changed({}),
        "published": _changed(PUBLISHED),
        "titan": lambda *_: TitanPolicy(kind="titan", time_limit_s=TITAN_TIME_LIMIT_S),
        "eft": lambda *_: EarliestFinishPolicy(kind="eft"),
        "ntm": lambda *_: NoMergingPolicy(kind="ntm"),
        "fixed_price": _fixed_price,
        **{f"published + {name}": _changed({**PUBLISHED, **fields}) for name, fields in IMPROVEMENTS.items()},
    }
)
