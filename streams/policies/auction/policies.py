"""How each kind of policy runs a zone: its rules, its market, and its judge."""

from collections.abc import Mapping

import numpy as np

from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    TitanPolicy,
)
from schemas.cells import Zone
from schemas.kind import PolicySettings
from solvers.auction.baselines.on_arrival import (
    EarliestFinish,
    ExclusiveMarket,
    FixedPrice,
    drawn_vendor,
    fastest_vendor,
)
from solvers.auction.market.fleet import Calendar, Fleet
from solvers.auction.market.market import ClassSlotValue, Market, Opening
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.mechanism import Mechanism, PriceRises
from solvers.auction.mechanism.primal_dual import PrimalDual
from solvers.auction.mechanism.steepness import LearnedSteepness
from solvers.compiled import Floats, Ints
from streams.cell.live_bytes import LiveBytes
from streams.policies.auction.batch_judge import BatchJudge
from streams.policies.auction.judge import ImmediateJudge, Judge, Verdicts


def mechanism_of(policy: PolicySettings) -> Mechanism:
    """How plans are found and priced."""
    match policy:
        case AuctionPolicy():
            return PrimalDual(
                payment=policy.payment,
                price_rises=_declared_rises(policy),
                order=policy.order,
                search=policy.search,
            )
        case EarliestFinishPolicy():
            return EarliestFinish(fastest_vendor)
        case NoMergingPolicy():
            return EarliestFinish(drawn_vendor)
        case TitanPolicy():
            # For quotes, and to say why a bid loses: its own plans come from a solver.
            return EarliestFinish(drawn_vendor)
        case FixedPricePolicy():
            return FixedPrice(policy.price_per_thousand_samples_micros)
        case _:
            raise TypeError(f"{policy.kind} is no policy of an auction zone")


def market_of(policy: PolicySettings) -> type[Market]:
    """Whether tasks may share a node."""
    return ExclusiveMarket if isinstance(policy, NoMergingPolicy) else Market


def opening_of(policy: PolicySettings, fleet: Fleet, calendar: Calendar) -> Opening:
    """What empty node-slots cost: by the hour that a slot begins in, if the policy forecasts any price."""
    forecasts = policy.opening_prices if isinstance(policy, AuctionPolicy) else ()

    def hourly(by_type: Mapping[str, tuple[float, ...]]) -> ClassSlotValue:
        def price(index: int, slots: Ints) -> Floats | float:
            prices = by_type.get(fleet.classes[index].gpu_type)
            return 0.0 if prices is None else np.array(prices)[calendar.hours_of(slots)]

        return price

    return Opening(
        compute=hourly({forecast.gpu_type: forecast.compute_micros for forecast in forecasts}),
        memory=hourly({forecast.gpu_type: forecast.memory_micros for forecast in forecasts}),
    )


def steepness_of(policy: PolicySettings, horizon_slots: int) -> LearnedSteepness | None:
    """What learns how steeply prices rise, where the policy declares it only to begin with."""
    if not isinstance(policy, AuctionPolicy) or policy.steepness == "declared":
        return None
    return LearnedSteepness(_declared_rises(policy), horizon_slots)


def _declared_rises(policy: AuctionPolicy) -> PriceRises:
    return PriceRises(
        alpha=policy.max_value_per_compute_micros / policy.money_unit_micros,
        beta=policy.max_value_per_memory_micros / policy.money_unit_micros,
        max_density_micros=policy.max_density_units * policy.money_unit_micros,
    )


def judge_of(
    zone: Zone, auctioneer: Auctioneer, calendar: Calendar, verdicts: Verdicts, live: LiveBytes
) -> Judge:
    """Whether bids are judged at once or a slot's together."""
    if isinstance(zone.policy, TitanPolicy):
        return BatchJudge(zone, zone.policy, auctioneer, calendar, verdicts, live)
    return ImmediateJudge(auctioneer, verdicts, live)
