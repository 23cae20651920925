"""Records of offers, prices and certificates, made from the auctioneer's numbers."""

import math
from collections.abc import Sequence

import numpy as np

from schemas.auction.evidence import (
    AuctionEvidence,
    Certificate,
    ClassPrices,
    CountedMemory,
    CountedSpeed,
    Offer,
    Plan,
    PriceBasis,
    PriceParts,
    Room,
    WelfareDifference,
    ZonePriced,
)
from solvers.auction.market.demand import Speed, TaskMemory
from solvers.auction.market.fleet import Calendar
from solvers.auction.mechanism.auctioneer import Appraisal, Auctioneer
from solvers.auction.mechanism.mechanism import PostedBasis, Price
from solvers.auction.mechanism.search import Schedule


def plan_of(schedule: Schedule, nodes: tuple[str, ...]) -> Plan:
    """Return a schedule with the names of its nodes."""
    return Plan(
        vendor=schedule.vendor,
        node_slots=tuple(
            zip(schedule.placement.slots, [nodes[row] for row in schedule.placement.rows], strict=True)
        ),
        samples=schedule.samples,
    )


def price_of(price: Price) -> PriceParts:
    return PriceParts(
        vendor_micros=price.vendor_micros,
        operational_micros=price.operational_micros,
        compute_micros=price.compute_micros,
        memory_micros=price.memory_micros,
    )


def offer_of(
    appraisal: Appraisal,
    speeds: Sequence[Speed],
    memory: TaskMemory,
    nodes: tuple[str, ...],
    calendar: Calendar,
) -> Offer:
    """Return an appraisal as an offer, with the speeds and memory that it is computed from."""
    schedule, price = appraisal.schedule, appraisal.price
    gap_micros = None if schedule is None else schedule.gap_micros
    room, earliest = appraisal.room, appraisal.earliest_last_slot
    return Offer(
        price=None if price is None else price_of(price),
        lowest_winning_bid_micros=None if price is None else price.lowest_winning_bid_micros,
        plan=None if schedule is None else plan_of(schedule, nodes),
        plan_gap_micros=None if gap_micros is None else math.ceil(gap_micros),
        speeds=tuple(
            CountedSpeed(
                gpu_type=speed.gpu_type,
                samples_per_s=speed.samples_per_s,
                source=speed.source,
                speed_from=speed.speed_from,
            )
            for speed in speeds
        ),
        memory=CountedMemory(gib=memory.gib, source=memory.source, memory_from=memory.memory_from),
        basis=basis_of(appraisal.basis),
        earliest_deadline_s=None if earliest is None else calendar.start_s(earliest + 1),
        room=Room(
            node_slots=room.node_slots,
            with_room=room.with_room,
            on_closed_nodes=room.node_closed,
            without_compute=room.without_compute,
            without_memory=room.without_memory,
            binding=appraisal.binding,
        ),
    )


def basis_of(basis: PostedBasis | None) -> PriceBasis | None:
    if basis is None:
        return None
    return PriceBasis(
        base_micros_per_thousand_samples=1_000 * basis.base_micros_per_unit,
        guard_micros_per_thousand_samples=1_000 * basis.guard_micros_per_unit,
        compute_part=basis.compute_part,
        span_slots=basis.span_slots,
        remembered_slots=basis.remembered_slots,
        expected_slots=basis.expected_slots,
        believed_part=basis.believed_part,
        asked_share=basis.asked_share,
        fall_per_slot=basis.fall,
    )


def certificate_of(auctioneer: Auctioneer) -> Certificate:
    """Return the proven bound on the zone's welfare, and the welfare planned and realised by now."""
    welfare, bound = auctioneer.welfare, auctioneer.prices.bound_micros
    planned = welfare.planned_micros
    return Certificate(
        planned_welfare_micros=planned,
        dual_bound_micros=bound,
        proven_ratio=bound / planned if planned > 0 else None,
        realised_welfare_micros=welfare.realised_micros,
        difference=WelfareDifference(
            finished_early_micros=welfare.finished_early_micros,
            replanned_micros=welfare.replanned_micros,
            refunded_micros=welfare.refunded_micros,
            failed_micros=welfare.failed_micros,
            withdrawn_micros=welfare.withdrawn_micros,
            undelivered_micros=welfare.undelivered_micros,
        ),
    )


def certificate_evidence(auctioneer: Auctioneer) -> AuctionEvidence:
    """Return the evidence of a decision about a job after its admission: the certificate."""
    return AuctionEvidence(certificate=certificate_of(auctioneer))


def priced(zone: str, auctioneer: Auctioneer, live_jobs: int) -> ZonePriced:
    """Return the use and prices per class of nodes over the whole window."""
    basis = auctioneer.prices.basis
    return ZonePriced(
        zone=zone,
        slot=auctioneer.market.first_slot - 1,
        live_jobs=live_jobs,
        classes=class_prices(auctioneer),
        basis=basis_of(basis),
        expected_by_hour=None if basis is None or basis.believed_part <= 0 else basis.expected_by_hour,
        certificate=certificate_of(auctioneer),
    )


def class_prices(auctioneer: Auctioneer) -> tuple[ClassPrices, ...]:
    """Return the use and prices of each class of nodes over the whole window."""
    market = auctioneer.market
    classes = []
    for index, node_class in enumerate(market.fleet.classes):
        rows = slice(node_class.start, node_class.stop)
        price = auctioneer.prices.of_class(index)
        node_slots = market.horizon_slots * (node_class.stop - node_class.start)
        classes.append(
            ClassPrices(
                gpu_type=node_class.gpu_type,
                tariff=node_class.tariff.name,
                nodes_up=int(np.count_nonzero(market.node_up[rows])),
                nodes=node_class.stop - node_class.start,
                compute_used_share=1
                - _sum(market.free_samples[:, rows]) / (node_class.capacity_samples * node_slots),
                memory_used_share=1 - _sum(market.free_gib[:, rows]) / (node_class.capacity_gib * node_slots),
                mean_compute_price_micros=price.mean_compute_micros,
                highest_compute_price_micros=price.highest_compute_micros,
                mean_memory_price_micros=price.mean_memory_micros,
                highest_memory_price_micros=price.highest_memory_micros,
            )
        )
    return tuple(classes)


def _sum(node_slots: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Return the exact sum: numpy's own depends on the machine's vector width."""
    return math.fsum(node_slots.ravel().tolist())
