"""Bids that wait for a solver, and how they are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.cells import Zone
from schemas.jobs import JobSubmitted
from solvers.auction.calendar import Calendar
from solvers.auction.demand import Demand
from solvers.auction.fleet import Fleet
from solvers.auction.mechanism import Request
from solvers.auction.window import VendorOption
from streams.live_bytes import kept_bytes


@dataclass(frozen=True)
class WaitingBid:
    """A bid that is not decided yet."""

    event: JobSubmitted
    request: Request
    """As it was when the bid came, with the vendor that was drawn as its only option."""
    gain_micros: int
    """mu_il, which the dual bound has already."""
    state_bytes: int
    """What it takes in a snapshot, at most."""


def packed(bids: Mapping[str, WaitingBid]) -> list[list[Any]]:
    """Bids, of types that msgpack writes; amounts may outgrow 64 bits, so they travel as text."""
    return [
        [
            bid.event.model_dump_json(),
            [bid.request.first_slot, bid.request.last_slot],
            [option.vendor, str(option.price_micros), option.delay_slots],
            str(bid.gain_micros),
        ]
        for bid in bids.values()
        for option in bid.request.options
    ]


def unpacked(state: list[list[Any]], zone: Zone, fleet: Fleet, calendar: Calendar) -> dict[str, WaitingBid]:
    """The bids that `packed` was given, by job; of the same zone."""
    bids = {}
    for text, (first_slot, last_slot), (vendor, price_micros, delay_slots), gain_micros in state:
        event = JobSubmitted.model_validate_json(text)
        task = event.task
        bids[event.job_id] = WaitingBid(
            event,
            Request(
                id=event.job_id,
                demand=Demand.of(task, task.work_samples, zone, fleet, calendar.slot_s),
                options=[VendorOption(vendor, int(price_micros), delay_slots)],
                first_slot=first_slot,
                last_slot=last_slot,
            ),
            int(gain_micros),
            kept_bytes(task),
        )
    return bids
