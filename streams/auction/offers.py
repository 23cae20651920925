"""From the auctioneer's numbers to what travels."""

import math

from schemas.decisions import Certificate, CountedSpeed, Offer, Plan, PriceParts, Room, WelfareDifference
from solvers.auction.auctioneer import Appraisal, Auctioneer
from solvers.auction.calendar import Calendar
from solvers.auction.mechanism import Price
from solvers.auction.search import Schedule


def plan_of(schedule: Schedule, nodes: tuple[str, ...]) -> Plan:
    """A schedule with its nodes' names."""
    return Plan(
        vendor=schedule.vendor,
        cells=tuple(
            zip(schedule.placement.slots, [nodes[row] for row in schedule.placement.rows], strict=True)
        ),
        samples=schedule.samples,
    )


def price_of(price: Price) -> PriceParts:
    """A price, part by part."""
    return PriceParts(
        vendor_micros=price.vendor_micros,
        operational_micros=price.operational_micros,
        compute_micros=price.compute_micros,
        memory_micros=price.memory_micros,
    )


def offer_of(
    appraisal: Appraisal, speeds: tuple[CountedSpeed, ...], nodes: tuple[str, ...], calendar: Calendar
) -> Offer:
    """An appraisal as an offer; `speeds` are those that it counts with."""
    schedule, price = appraisal.schedule, appraisal.price
    gap_micros = None if schedule is None else schedule.gap_micros
    room, earliest = appraisal.room, appraisal.earliest_last_slot
    return Offer(
        price=None if price is None else price_of(price),
        lowest_winning_bid_micros=None if price is None else price.lowest_winning_bid_micros,
        plan=None if schedule is None else plan_of(schedule, nodes),
        plan_gap_micros=None if gap_micros is None else math.ceil(gap_micros),
        speeds=speeds,
        earliest_deadline_s=None if earliest is None else calendar.start_s(earliest + 1),
        room=Room(
            cells=room.cells,
            cells_with_room=room.with_room,
            cells_node_down=room.node_down,
            cells_without_compute=room.without_compute,
            cells_without_memory=room.without_memory,
            binding=appraisal.binding,
        ),
    )


def certificate_of(auctioneer: Auctioneer) -> Certificate:
    """How good the zone's decisions so far are proven to be, and what came of them."""
    welfare, bound = auctioneer.welfare, auctioneer.dual_bound.micros
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
        ),
    )
