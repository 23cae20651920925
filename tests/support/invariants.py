"""Invariants of an auction zone, checked after every event."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import msgpack
import numpy as np

from schemas.auction.evidence import Certificate, evidence_of
from schemas.base import MAX_MICROS
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobRejected, NodeMoved
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings
from solvers.auction.posted.prices import PostedPrices
from streams.cell.ledger_event import LedgerEvent
from streams.cell.live_bytes import job_bytes
from streams.cell.state_machine import Cell
from streams.policies.auction.planned_job import LATE_REPORT_SLOTS, ZONE_BYTES
from streams.policies.auction.zone import AuctionZone
from tests.support.described import check_described
from tests.support.sentences import check_sentences

GRACE_SLOTS = 1
"""The report of a job's last slot is waited for until the slot after it is over; for `LATE_REPORT_SLOTS`
where it may show that a declared speed is not there."""

DESCRIBED_EVERY = 7
"""Events."""

_EMPTY_BYTES = 64
"""Bytes of a few empty lists."""

_ROUNDING = 1e-12
"""Relative."""


@dataclass(frozen=True)
class Prices:
    """The prices of a zone before or after an event."""

    first_slot: int
    """First slot of the window."""
    settings: PolicySettings
    by_node: dict[str, np.ndarray]
    """(of compute and of memory, slot)"""
    fall: float = 0.0
    """By what part they may fall in a slot."""
    undone_part: float = 1.0
    """To what part they may fall besides when the slot ends, as awards were withdrawn."""


def handle_checked(cell: Cell, event: LedgerEvent) -> list[Decision]:
    """`Cell.handle`, and what must hold after any event.

    Raises:
        AssertionError: naming what does not hold.
    """
    before = {id: prices(zone) for id, zone in auctions(cell).items()}
    bid = event.envelope.event if isinstance(event.envelope.event, JobSubmitted) else None
    rewound = cell.snapshot() if bid is not None else b""
    decisions = cell.handle(event)
    check_sentences(decisions)
    check_live_bytes(cell)
    assert list(cell.broken_invariants()) == []
    if event.offset % DESCRIBED_EVERY == 0:
        check_described(cell)
    moved = any(isinstance(decision.outcome, NodeMoved) for decision in decisions)
    for id, zone in auctions(cell).items():
        if id in before:
            check_prices_never_fell(before[id], prices(zone))
            passed = zone.auctioneer.market.first_slot > before[id].first_slot
            check_lifetimes(zone, passed and not moved)
    for decision in decisions:
        check_certificate(
            getattr(decision.outcome, "certificate", None) or evidence_of(decision.outcome).certificate
        )
        if isinstance(decision.outcome, JobAdmitted):
            check_award(decision.outcome, cell.zones[decision.outcome.zone])
        if bid is not None and isinstance(decision.outcome, JobAdmitted | JobRejected):
            check_offer_ignores_bid(rewound, event, bid, decision.outcome)
    return decisions


def auctions(cell: Cell) -> dict[str, AuctionZone]:
    """The zones of a cell under the auction or a baseline of it."""
    return {id: zone for id, zone in cell.zones.items() if isinstance(zone, AuctionZone)}


def check_live_bytes(cell: Cell) -> None:
    """Check that live jobs count for at least their bytes in a snapshot, and for no more than there are.

    Raises:
        AssertionError: naming what does not hold.
    """
    zones = auctions(cell)
    if not zones:
        return
    total = next(iter(zones.values())).live.total
    counted = sum(job_bytes(job.workload, job.terms) for job in cell.jobs.live.values())
    taken = len(msgpack.packb(cell.jobs.state()["live"]))
    for zone in zones.values():
        undecided = zone.admission.state()
        batches = [undecided.get("waiting", []), *(bids for _, bids in undecided.get("asked", []))]
        counted += sum(job.state_bytes for job in zone.book.jobs.values())
        counted += sum(ZONE_BYTES for bids in batches for _ in bids)
        taken += len(msgpack.packb([zone.book.state(), batches]))
    assert total == counted, "the running total is not the sum over the live jobs"
    assert taken <= total + _EMPTY_BYTES, "live jobs take more of a snapshot than they are counted for"
    assert total <= cell.configuration.live_jobs_bytes


def check_lifetimes(zone: AuctionZone, slot_began: bool) -> None:
    """Check that jobs end in time after their last slot (docs/auction/declarations.md, "Every wait ends").

    Args:
        slot_began: whether one did with the event, and nothing after that. An event in between may end a
            wait, and so may a node that leaves: the job then ends only when the next slot begins.

    Raises:
        AssertionError: naming what does not hold.
    """
    present_slot = zone.book.present_slot
    for job in zone.book.jobs.values():
        assert all(slot <= job.last_slot for slot in job.rows), f"job {job.job_id} is planned too late"
        awaited = any(
            base_samples is not None and present_slot <= slot + LATE_REPORT_SLOTS
            for slot, base_samples in job.runs.items()
        )
        grace_slots = GRACE_SLOTS if slot_began and not awaited else LATE_REPORT_SLOTS
        assert present_slot <= job.last_slot + grace_slots, (
            f"job {job.job_id} outlives its last slot, {job.last_slot}, in slot {present_slot}"
        )


def check_certificate(certificate: Certificate | None) -> None:
    """Check that the certificate's bound holds, and that its causes explain the results."""
    if certificate is None:
        return
    planned, bound = certificate.planned_welfare_micros, certificate.dual_bound_micros
    assert planned <= bound, "the plans as admitted are worth more than their bound"
    assert certificate.proven_ratio == (bound / planned if planned > 0 else None)
    assert certificate.proven_ratio is None or certificate.proven_ratio >= 1
    causes = certificate.difference.model_dump().values()
    assert certificate.realised_welfare_micros == planned + sum(causes)


def check_prices_never_fell(before: Prices, after: Prices) -> None:
    """Prices of the node-slots in both windows are no lower than before, as long as the settings stay, or
    than as many slots let them fall to."""
    passed = after.first_slot - before.first_slot
    least = (1 - before.fall) ** passed * (1 - _ROUNDING * passed)
    if passed:
        least *= before.undone_part
    known = before.by_node.keys() & after.by_node.keys() if before.settings == after.settings else ()
    for node in known:
        old, new = before.by_node[node][:, passed:], after.by_node[node]
        kept = min(old.shape[1], new.shape[1])
        assert (new[:, :kept] >= least * old[:, :kept]).all(), f"a price of node {node} fell"


def prices(zone: AuctionZone) -> Prices:
    """The present prices, for `check_prices_never_fell`."""
    market, posted = zone.auctioneer.market, zone.auctioneer.prices
    if not isinstance(posted, PostedPrices):
        both = np.array([market.compute_price, market.memory_price])
        by_node = {node: both[:, :, row] for node, row in zone.fleet.row_of.items()}
        return Prices(market.first_slot, zone.zone.policy, by_node)
    both = np.array([posted.compute_price, posted.memory_price])
    by_node = {node: both[:, :, zone.fleet.class_of_row[row]] for node, row in zone.fleet.row_of.items()}
    fall, rise = posted.levels.fall(posted.curve), posted.withdrawn_rise
    return Prices(market.first_slot, zone.zone.policy, by_node, fall, min(rise.base_part, rise.guard_part))


def check_award(outcome: JobAdmitted, zone: AuctionZone) -> None:
    """A winner pays no more than it bid, and exactly its price rounded up; its slots are distinct."""
    price, plan = outcome.evidence.offer.price, outcome.evidence.offer.plan
    assert price is not None
    assert plan is not None
    parts = [price.vendor_micros, price.operational_micros, price.compute_micros, price.memory_micros]
    assert math.fsum(parts) < outcome.evidence.bid_micros, "admitted only above its price"
    if getattr(zone.zone.policy, "payment", "critical") == "published":
        parts.remove(price.operational_micros)
    assert outcome.payment_micros == math.ceil(math.fsum(parts)) <= outcome.evidence.bid_micros
    slots = [slot for slot, _ in plan.node_slots]
    assert all(early < late for early, late in pairwise(slots)), "one node per slot, in order"
    job = zone.book.jobs[outcome.job_id]
    assert slots[0] >= job.ready_slot >= zone.auctioneer.market.first_slot, "not before its vendor delivers"
    assert plan.samples >= job.workload.work_samples


def check_offer_ignores_bid(
    rewound: bytes, event: LedgerEvent, bid: JobSubmitted, outcome: JobAdmitted | JobRejected
) -> None:
    """Price and plan stay the same if a winner bids nothing instead, or a loser everything."""
    bid_micros = 0 if isinstance(outcome, JobAdmitted) else MAX_MICROS
    other = bid.model_copy(update={"terms": bid.terms.model_copy(update={"bid_micros": bid_micros})})
    envelope = replace(event.envelope, event=other, stored=None)
    (decision,) = Cell.restore(rewound).handle(LedgerEvent(event.offset, envelope))
    met, offered = evidence_of(decision.outcome).offer, evidence_of(outcome).offer
    assert met == offered, "the offer depends on the bid"
