"""The policies of a zone: chosen by kind, and what was accepted when there was only one is accepted still."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.cells import AnyPolicy
from schemas.codec import describe
from tests.schemas.samples import CONFIGURED

BOUNDS = {name: bound for name, bound in CONFIGURED["zones"][0]["policy"].items() if name != "kind"}
READ: dict[str, tuple[dict[str, Any], type]] = {
    "auction": ({"kind": "auction"}, AuctionPolicy),
    "pdftsp": ({"kind": "pdftsp", **BOUNDS}, PdftspPolicy),
    "eft": ({"kind": "eft"}, EarliestFinishPolicy),
    "ntm": ({"kind": "ntm"}, NoMergingPolicy),
    "titan": ({"kind": "titan"}, TitanPolicy),
    "fixed_price": ({"kind": "fixed_price", "price_per_thousand_samples_micros": 5}, FixedPricePolicy),
}


def read(policy: Any) -> Any:
    return TypeAdapter(AnyPolicy).validate_json(json.dumps(policy))


@pytest.mark.parametrize(("policy", "kind"), READ.values(), ids=READ)
def test_kind_selects_the_policy(policy, kind):
    found = read(policy)
    assert type(found) is kind
    assert read(json.loads(found.model_dump_json())) == found


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        ({"kind": "lottery"}, "kind lottery is not known"),
        ({"kind": ["eft"]}, "kind ['eft'] is not known"),
        (3, "should be an object"),
        (BOUNDS, "no kind is given"),
        ({"kind": "auction", **BOUNDS}, "micros: settings of policy pdftsp, write kind: pdftsp"),
        ({"kind": "auction", "bounds": 1}, "auction.bounds"),
        ({"kind": "pdftsp", "money_unit_micros": 1}, "max_value_per_memory_micros: missing"),
        ({"kind": "pdftsp", **BOUNDS, "money_unit_micros": 0}, "pdftsp.money_unit_micros"),
        ({"kind": "fixed_price"}, "fixed_price.price_per_thousand_samples_micros"),
        ({"kind": "eft", **BOUNDS}, "eft.money_unit_micros"),
        ({"kind": "titan", "time_limit_s": 0.0}, "titan.time_limit_s"),
    ],
)
def test_invalid_policy_is_refused_by_name(policy, fault):
    with pytest.raises(ValidationError) as refused:
        read(policy)
    assert fault in describe(refused.value)
