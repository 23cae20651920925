"""The decisions about the bids of a zone, one by one or in batches, and their records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from schemas.auction.bids import Task, bid_micros_of
from schemas.auction.evidence import AuctionEvidence, Offer
from schemas.base import Outcome
from schemas.cells import Zone
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected, RejectionReason
from schemas.facts import NO_FACTS, Fact, Facts
from schemas.jobs import JobQuoteRequested
from schemas.lora import LoraWorkload
from schemas.solves import SolveFinished
from solvers.auction.market.demand import (
    NO_PROFILES,
    Known,
    Profiles,
    UnplannableError,
    counted_memory,
    counted_speeds,
)
from solvers.auction.market.fleet import Calendar
from solvers.auction.mechanism.auctioneer import Appraisal, Auctioneer, Award
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.mechanism.search import Schedule
from streams.cell.jobs import Job
from streams.cell.live_bytes import Refusal
from streams.policies.auction.book import JobBook
from streams.policies.auction.offers import certificate_of, offer_of
from streams.policies.auction.planned_job import PlannedJob, planned_bytes, profiles_bytes
from streams.policies.auction.vendors import Vendors
from streams.policies.ignored import unknown_solve
from streams.policies.policy import ZoneContext


@dataclass(frozen=True)
class Bid:
    """A job that waits for its verdict."""

    job: Job
    workload: LoraWorkload
    """Workload of the job."""
    bid_micros: int
    """Bid b_i."""
    deadline_s: float
    """Deadline d_i."""
    profiles: Profiles = field(default_factory=dict)
    """Profiles that count for the task, by GPU type."""

    @classmethod
    def of(cls, job: Job, profiles: Profiles = NO_PROFILES) -> Self:
        task = Task.of(job)
        return cls(job, task.workload, bid_micros_of(job), task.deadline_s, profiles)


@dataclass(frozen=True)
class Admission:
    """Decisions about a winner: its admission, and the order of its pre-processing."""

    outcomes: Sequence[Outcome]


class Verdicts:
    """Records of the decisions about bids of one zone."""

    def __init__(
        self, zone: Zone, auctioneer: Auctioneer, book: JobBook, vendors: Vendors, calendar: Calendar
    ) -> None:
        self._zone = zone
        self._auctioneer = auctioneer
        self._book = book
        self._vendors = vendors
        self._calendar = calendar
        self._fleet = auctioneer.market.fleet

    def admit(self, bid: Bid, request: Request, appraisal: Appraisal, award: Award) -> Admission:
        """Add a winner to the book, and return its admission and the order of its pre-processing."""
        schedule, charge = award.schedule, award.charge
        order = self._vendors.order(bid.job.job_id, schedule)
        planned = PlannedJob(
            job=bid.job,
            bid_micros=bid.bid_micros,
            payment_micros=charge.micros,
            refundable_micros=charge.operational_micros,
            density_micros=award.density_micros,
            counted=award.counted,
            welfare_micros=award.welfare_micros,
            ready_slot=self._auctioneer.market.first_slot + schedule.vendor_delay_slots,
            last_slot=request.last_slot,
            demand=request.demand,
            order=order,
            profiles=dict(bid.profiles),
        )
        planned.hold(schedule.placement, request.demand, self._fleet.class_of_row)
        self._book.add(planned)
        admitted = JobAdmitted(
            job_id=bid.job.job_id,
            user=bid.job.user,
            zone=self._zone.id,
            reason="bid_above_price",
            payment_micros=charge.micros,
            evidence=self._evidence(bid, appraisal),
        )
        ordered = () if order is None else (self._vendors.ordered(planned, order),)
        return Admission((admitted, *ordered))

    def bytes_of(self, schedule: Schedule) -> int:
        """Return the most bytes of a job with a plan in a snapshot."""
        return planned_bytes(schedule.placement, self._vendors.orders(schedule))

    def rejected(
        self, bid: Bid, reason: RejectionReason, facts: Facts, appraisal: Appraisal | None
    ) -> JobRejected:
        """Return the rejection of a loser; without an appraisal if no plan can be searched for its task."""
        return JobRejected(
            job_id=bid.job.job_id,
            user=bid.job.user,
            zone=self._zone.id,
            reason=reason,
            facts=facts,
            evidence=self._evidence(bid, appraisal),
        )

    def quoted(
        self,
        request: JobQuoteRequested,
        workload: LoraWorkload,
        profiles: Profiles,
        found: Appraisal | UnplannableError,
        remark: Mapping[str, Fact],
        full: Refusal,
    ) -> JobQuoted:
        """Return the answer to a request for a quote.

        Args:
            request: the request.
            workload: its workload.
            profiles: profiles that count for its task.
            found: appraisal by the auctioneer, or its error.
            remark: facts of a quote with a plan.
            full: refusal of the cell to keep a bid with that plan; None if it has room.
        """
        reason: RejectionReason | Literal["plan_found"]
        if isinstance(found, UnplannableError):
            offer, reason, facts = None, found.reason, found.facts
        else:
            offer = self._offer(workload, profiles, found)
            if found.schedule is None:
                reason, facts = losing_reason(found, 0)
            else:
                reason, facts = ("plan_found", dict(remark)) if full is None else ("cell_full", full)
        return JobQuoted(
            quote_id=request.quote_id,
            zone=self._zone.id,
            reason=reason,
            facts=facts,
            evidence=AuctionEvidence(offer=offer),
        )

    def _evidence(self, bid: Bid, appraisal: Appraisal | None) -> AuctionEvidence:
        return AuctionEvidence(
            bid_micros=bid.bid_micros,
            offer=None if appraisal is None else self._offer(bid.workload, bid.profiles, appraisal),
            certificate=certificate_of(self._auctioneer),
        )

    def _offer(self, workload: LoraWorkload, profiles: Profiles, appraisal: Appraisal) -> Offer:
        known = Known.of(workload, self._zone, profiles)
        speeds, memory = counted_speeds(workload, known), counted_memory(workload, known, self._fleet)
        return offer_of(appraisal, speeds, memory, self._fleet.nodes, self._calendar)


def losing_reason(appraisal: Appraisal, bid_micros: int) -> tuple[RejectionReason, Facts]:
    """Return the reason and facts for which a bid loses against an appraisal."""
    price, room = appraisal.price, appraisal.room
    if price is not None and bid_micros <= price.micros:
        facts: Facts = {
            "bid_micros": bid_micros,
            "lowest_winning_bid_micros": price.lowest_winning_bid_micros,
        }
        return "price_not_below_bid", facts
    if appraisal.binding == "time":
        return "deadline_too_soon", {}
    return "no_room_before_deadline", {
        "node_slots": room.node_slots,
        "with_room": room.with_room,
        "node_closed": room.node_closed,
        "without_compute": room.without_compute,
        "without_memory": room.without_memory,
    }


class AdmissionControl:
    """Decides about the bids of one zone, about each at its arrival: no bid waits, and there is no state. A
    subclass may decide later."""

    quote_facts: Mapping[str, Fact] = NO_FACTS
    """Facts of a quote with a plan: a `case` with its meaning here."""

    def __init__(self, context: ZoneContext, auctioneer: Auctioneer, verdicts: Verdicts) -> None:
        self._auctioneer = auctioneer
        self._verdicts = verdicts
        self._live = context.live
        self._outcomes = context.outcomes

    def bid(self, bid: Bid, request: Request) -> None:
        """Apply a bid for whose task a plan can be searched."""
        appraisal = self._auctioneer.appraise(request)
        schedule, price = appraisal.schedule, appraisal.price
        if schedule is not None and price is not None and bid.bid_micros > price.micros:
            full = self.full(bid.job.user, profiles_bytes(bid.profiles), schedule)
            if full is not None:
                # It had a plan, so the bound includes it.
                self._auctioneer.prices.lost(self._auctioneer.count_bid(bid.bid_micros, request, appraisal))
                self._outcomes.add(self._verdicts.rejected(bid, "cell_full", full, appraisal))
                return
        award = self._auctioneer.decide(bid.bid_micros, request, appraisal)
        if award is None:
            self._lose(bid, appraisal)
        else:
            self._outcomes.extend(self._verdicts.admit(bid, request, appraisal, award).outcomes)

    def full(self, user: str, job_bytes: int, schedule: Schedule) -> Refusal:  # noqa: ARG002
        """Return why the cell cannot keep a job of a user with a plan; None if it has room."""
        return self._live.refuse_job(job_bytes + self._verdicts.bytes_of(schedule))

    def has(self, job_id: str) -> bool:  # noqa: ARG002
        """Return whether a job waits for its verdict."""
        return False

    def withdraw(self, job: Job) -> None:
        """Withdraw a job that waits for its verdict."""
        raise AssertionError(f"job {job.job_id} does not wait: every bid is decided on arrival")

    def on_clock(self, time_s: float) -> None:
        """Apply a tick of the clock, after the market's window has moved."""

    def on_solve(self, event: SolveFinished) -> None:
        self._outcomes.add(unknown_solve(event))

    def describe(self) -> dict[str, Any]:
        """Describe the bids that wait here, as jobs, and the outstanding requests; see `ZonePolicy`."""
        return {"jobs": {}, "solver_requests": []}

    def inherit(self, before: Self) -> None:
        """Take over the bids of the zone's previous admission control, which had other nodes or settings."""

    def state(self) -> dict[str, Any]:
        """Return the state, in types that msgpack writes."""
        return {}

    def restore(self, state: dict[str, Any], jobs: Mapping[str, Job]) -> None:
        """Set the state of another admission control of the same zone, with the live jobs by id."""

    def _lose(self, bid: Bid, appraisal: Appraisal) -> None:
        """Reject a bid that loses against its appraisal."""
        reason, facts = losing_reason(appraisal, bid.bid_micros)
        self._outcomes.add(self._verdicts.rejected(bid, reason, facts, appraisal))
