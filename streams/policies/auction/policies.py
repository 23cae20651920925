"""The auctioneer, the market and the admission control of each policy of an auction zone."""

from collections.abc import Mapping

import numpy as np

from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.kind import PolicySettings
from solvers.auction.baselines.on_arrival import (
    EarliestFinish,
    ExclusiveMarket,
    FixedPrice,
    drawn_vendor,
    fastest_vendor,
)
from solvers.auction.market.fleet import Calendar, Fleet
from solvers.auction.market.market import ClassSlotValue, EmptyPrices, Market
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.mechanism import Mechanism, PriceRises
from solvers.auction.mechanism.primal_dual import PrimalDual
from solvers.auction.mechanism.rising_prices import LearnedSteepness, RisingPrices
from solvers.auction.posted.mechanism import Posted
from solvers.auction.posted.prices import PostedPrices
from solvers.compiled import Floats, Ints
from streams.policies.auction.admission import AdmissionControl, Verdicts
from streams.policies.auction.batch_admission import BatchAdmissionControl
from streams.policies.policy import ZoneContext


def auctioneer_of(policy: PolicySettings, market: Market, calendar: Calendar) -> Auctioneer:
    """Return the auctioneer of a zone, which finds and prices plans and moves prices."""
    if isinstance(policy, AuctionPolicy):
        posted = PostedPrices(market, calendar)
        return Auctioneer(market, Posted(posted), posted)
    if isinstance(policy, PdftspPolicy):
        rises = _declared_rises(policy)
        mechanism = PrimalDual(payment=policy.payment, order=policy.order, search=policy.search)
        learned = LearnedSteepness(rises, market.horizon_slots) if policy.steepness == "learned" else None
        return Auctioneer(market, mechanism, RisingPrices(market, rises, learned))
    return Auctioneer(market, _baseline(policy), RisingPrices(market, None))


def _baseline(policy: PolicySettings) -> Mechanism:
    match policy:
        case EarliestFinishPolicy():
            return EarliestFinish(fastest_vendor)
        case NoMergingPolicy():
            return EarliestFinish(drawn_vendor)
        case TitanPolicy():
            # For quotes and the reasons of rejections: Titan's plans come from a solver.
            return EarliestFinish(drawn_vendor)
        case FixedPricePolicy():
            return FixedPrice(policy.price_per_thousand_samples_micros)
        case _:
            raise TypeError(f"{policy.kind} is no policy of an auction zone")


def market_of(policy: PolicySettings) -> type[Market]:
    """Return the class of the market: of nodes that tasks share, or do not."""
    return ExclusiveMarket if isinstance(policy, NoMergingPolicy) else Market


def opening_of(policy: PolicySettings, fleet: Fleet, calendar: Calendar) -> EmptyPrices:
    """Return the prices of empty node-slots: the policy's forecasts by the hour in which a slot begins, or
    0."""
    forecasts = policy.opening_prices if isinstance(policy, PdftspPolicy) else ()

    def hourly(by_type: Mapping[str, tuple[float, ...]]) -> ClassSlotValue:
        def price(index: int, slots: Ints) -> Floats | float:
            prices = by_type.get(fleet.classes[index].gpu_type)
            return 0.0 if prices is None else np.array(prices)[calendar.hours_of(slots)]

        return price

    return EmptyPrices(
        compute=hourly({forecast.gpu_type: forecast.compute_micros for forecast in forecasts}),
        memory=hourly({forecast.gpu_type: forecast.memory_micros for forecast in forecasts}),
    )


def _declared_rises(policy: PdftspPolicy) -> PriceRises | None:
    bounds = policy.bounds
    if bounds is None:
        return None
    unit = bounds.money_unit_micros
    return PriceRises(
        alpha=bounds.max_value_per_compute_micros / unit,
        beta=bounds.max_value_per_memory_micros / unit,
        max_density_micros=policy.max_density_units * unit,
    )


def admission_control_of(
    context: ZoneContext, auctioneer: Auctioneer, calendar: Calendar, verdicts: Verdicts
) -> AdmissionControl:
    """Return the admission control of a zone: bids are decided one by one, or those of a slot together."""
    policy = context.zone.policy
    if isinstance(policy, TitanPolicy):
        return BatchAdmissionControl(context, policy, auctioneer, calendar, verdicts)
    return AdmissionControl(context, auctioneer, verdicts)
