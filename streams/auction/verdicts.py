"""What was decided about bids and quotes, put down: outcomes, and the winners in the book."""

from typing import Literal

from schemas.cells import Zone
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected, Offer
from schemas.jobs import JobQuoteRequested, JobSubmitted, RejectionReason, Task
from solvers.auction.auctioneer import Appraisal, Auctioneer, Award
from solvers.auction.calendar import Calendar
from solvers.auction.demand import UnjudgeableError
from solvers.auction.mechanism import Request
from solvers.auction.speeds import counted_speeds
from streams.auction.book import JobBook
from streams.auction.job import Job
from streams.auction.offers import certificate_of, offer_of


class Verdicts:
    """Of one zone."""

    def __init__(self, zone: Zone, auctioneer: Auctioneer, book: JobBook, calendar: Calendar) -> None:
        self._zone = zone
        self._auctioneer = auctioneer
        self._book = book
        self._calendar = calendar
        self._fleet = auctioneer.market.fleet

    def admitted(
        self, event: JobSubmitted, request: Request, appraisal: Appraisal, award: Award
    ) -> JobAdmitted:
        """A winner, whose job the book has from now on."""
        schedule, charge = award.schedule, award.charge
        job = Job(
            job_id=event.job_id,
            user=event.user,
            task=event.task,
            bid_micros=event.bid_micros,
            payment_micros=charge.micros,
            refundable_micros=charge.operational_micros,
            density_micros=award.density_micros,
            gain_micros=award.gain_micros,
            welfare_micros=award.welfare_micros,
            ready_slot=self._auctioneer.market.first_slot + schedule.vendor_delay_slots,
            last_slot=request.last_slot,
            demand=request.demand,
        )
        job.plan(schedule.placement, request.demand, self._fleet.class_of_row)
        self._book.add(job)
        return JobAdmitted(
            job_id=event.job_id,
            user=event.user,
            zone=self._zone.id,
            reason="bid_above_price",
            bid_micros=event.bid_micros,
            payment_micros=charge.micros,
            offer=self._offer(event.task, appraisal),
            certificate=certificate_of(self._auctioneer),
        )

    def rejected(
        self, event: JobSubmitted, reason: RejectionReason, detail: str, appraisal: Appraisal | None
    ) -> JobRejected:
        """A loser; without appraisal where its task could not even be judged."""
        return JobRejected(
            job_id=event.job_id,
            user=event.user,
            zone=self._zone.id,
            reason=reason,
            detail=detail,
            bid_micros=event.bid_micros,
            offer=None if appraisal is None else self._offer(event.task, appraisal),
            certificate=certificate_of(self._auctioneer),
        )

    def quoted(
        self, event: JobQuoteRequested, found: Appraisal | UnjudgeableError, remark: str, full: str | None
    ) -> JobQuoted:
        """The answer to a request for a quote.

        Args:
            remark: what a plan that was found means.
            full: why a bid with that plan could not be kept, if it could not.
        """
        reason: RejectionReason | Literal["plan_found"]
        if isinstance(found, UnjudgeableError):
            offer, reason, detail = None, found.reason, found.detail
        else:
            offer = self._offer(event.task, found)
            if found.schedule is None:
                reason, detail = why_not(found, 0)
            else:
                reason, detail = ("plan_found", remark) if full is None else ("cell_full", full)
        return JobQuoted(
            quote_id=event.quote_id, zone=self._zone.id, reason=reason, detail=detail, offer=offer
        )

    def _offer(self, task: Task, appraisal: Appraisal) -> Offer:
        return offer_of(appraisal, counted_speeds(task, self._zone), self._fleet.nodes, self._calendar)


def why_not(appraisal: Appraisal, bid_micros: int) -> tuple[RejectionReason, str]:
    """Why a bid loses against an appraisal."""
    price, room = appraisal.price, appraisal.room
    if price is not None and bid_micros <= price.micros:
        return (
            "price_not_below_bid",
            f"the bid of {bid_micros} is not above the price: {price.lowest_winning_bid_micros} wins",
        )
    if appraisal.binding == "time":
        return "deadline_too_soon", (
            "even with every node free, the work does not fit before the deadline, within the zone's horizon"
        )
    return (
        "no_room_before_deadline",
        f"of {room.cells} cells before the deadline {room.with_room} have room: {room.node_down} are on down "
        f"nodes, {room.without_compute} lack compute, {room.without_memory} lack memory",
    )
