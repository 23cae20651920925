"""Histories under every policy, and what was decided in them: verdicts, payments, plans, welfare."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schemas.auction.evidence import JobReplanned, Plan, ZonePriced
from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    OpeningPrices,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.base import HOURS_PER_DAY, Outcome
from schemas.cells import CellConfigured, Node
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.kind import PolicySettings
from schemas.solves import SolveRequested
from tests.support.cells import UNIT, Bench, configuration, zone
from tests.support.histories import history
from tests.support.solves import titan_answer

FOLDER = Path(__file__).parent
BIDS = 600
_BIDS_PER_SLOT = 12
_PATIENCE_SLOTS = 14
_HORIZON_SLOTS = 12
_FLEET = (*(f"a{number}" for number in range(1, 5)), *(f"b{number}" for number in range(1, 4)))


def _pdftsp(**fields: Any) -> PdftspPolicy:
    bounds = {
        "money_unit_micros": UNIT,
        "max_value_per_compute_micros": 4 * UNIT,
        "max_value_per_memory_micros": 4 * UNIT,
    }
    return PdftspPolicy(kind="pdftsp", **bounds, **fields)


_RISING = tuple(UNIT * hour / (2 * HOURS_PER_DAY) for hour in range(HOURS_PER_DAY))

POLICIES: MappingProxyType[str, PolicySettings] = MappingProxyType(
    {
        "auction": _pdftsp(),
        "auction-default": AuctionPolicy(),
        "auction-learned": _pdftsp(
            steepness="learned",
            opening_prices=(
                OpeningPrices(gpu_type="fast", compute_micros=_RISING, memory_micros=_RISING),
                OpeningPrices(gpu_type="slow", compute_micros=_RISING, memory_micros=_RISING),
            ),
        ),
        "auction-published": _pdftsp(payment="published", order="published", search="published"),
        "eft": EarliestFinishPolicy(kind="eft"),
        "ntm": NoMergingPolicy(kind="ntm"),
        "titan": TitanPolicy(kind="titan", relative_gap=0.0),
        "fixed-price": FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=10 * UNIT),
    }
)


def market(policy: PolicySettings) -> CellConfigured:
    """A cell of seven nodes under this policy."""
    nodes = tuple(Node(id=id, gpu_type="fast" if id.startswith("a") else "slow", tariff="t") for id in _FLEET)
    return configuration(zones=(zone(policy=policy, nodes=nodes, horizon_slots=_HORIZON_SLOTS),))


def table(name: str) -> str:
    """A line for each decision about a job, and for each slot's certificate, in their order."""
    bench = Bench.configured(zones=market(POLICIES[name]).zones)
    coming = history(
        random.Random(f"outcomes/{name}"), BIDS, _BIDS_PER_SLOT, _PATIENCE_SLOTS, _FLEET, 0.15, 0.05
    )
    event = next(coming)
    while True:
        outcomes = bench.send(event)
        for asked in [outcome for outcome in outcomes if isinstance(outcome, SolveRequested)]:
            outcomes += bench.send(titan_answer(asked))
        try:
            event = coming.send(outcomes)
        except StopIteration:
            lines = (line for decision in bench.decisions for line in _lines(decision.outcome))
            return "".join(f"{line}\n" for line in lines)


def path(name: str) -> Path:
    """Where a policy's table is kept."""
    return FOLDER / f"{name}.txt"


def _lines(outcome: Outcome) -> Iterator[str]:
    match outcome:
        case JobAdmitted():
            plan = outcome.evidence.offer.plan
            assert plan is not None
            yield f"{outcome.job_id} admitted pays {outcome.payment_micros} {_plan(plan)}"
        case JobRejected():
            yield f"{outcome.job_id} rejected {outcome.reason}"
        case JobReplanned():
            yield f"{outcome.job_id} replanned {outcome.reason} {_plan(outcome.plan)}"
        case JobRefunded():
            yield f"{outcome.job_id} refunded {outcome.reason} {outcome.refund_micros}"
        case JobWithdrawn():
            yield f"{outcome.job_id} withdrawn {outcome.returned_micros}"
        case JobCompleted():
            yield f"{outcome.job_id} completed pays {outcome.payment_micros}"
        case ZonePriced():
            certificate = outcome.certificate
            yield (
                f"welfare planned {certificate.planned_welfare_micros} realised "
                f"{certificate.realised_welfare_micros} bound {certificate.dual_bound_micros}"
            )


def _plan(plan: Plan) -> str:
    return " ".join([plan.vendor or "-", *(f"{slot}@{node}" for slot, node in plan.node_slots)])
