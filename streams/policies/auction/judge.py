"""Who judges the bids of a zone, at once or many together, and how a verdict is put down."""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

from schemas.cells import Zone
from schemas.decisions import EventIgnored, JobAdmitted, JobQuoted, JobRejected, Offer
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested, RejectionReason, Task
from schemas.registry import Outcome
from schemas.solves import SolveFinished
from solvers.auction.market.demand import UnjudgeableError, counted_speeds
from solvers.auction.market.fleet import Calendar
from solvers.auction.mechanism.auctioneer import Appraisal, Auctioneer, Award
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.mechanism.search import Schedule
from streams.cell.live_bytes import LiveBytes, kept_bytes
from streams.policies.auction.book import JobBook
from streams.policies.auction.job import Job
from streams.policies.auction.offers import certificate_of, offer_of


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
        f"of {room.node_slots} node-slots before the deadline {room.with_room} have room: "
        f"{room.node_down} are on down nodes, {room.without_compute} lack compute, {room.without_memory} "
        "lack memory",
    )


class Judge(Protocol):
    """Decides about the bids of one zone."""

    quote_remark: str
    """What a quote with a plan means here."""

    def bid(self, event: JobSubmitted, request: Request) -> Iterator[Outcome]:
        """A bid whose task can be judged."""

    def full(self, user: str, task: Task, schedule: Schedule) -> str | None:
        """Why the cell could not keep a bid of this user with this plan; None where it could."""

    def has(self, job_id: str) -> bool:
        """Whether a bid of this id waits for its decision."""

    def withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        """A user gives up a bid that the book does not have."""

    def on_clock(self, time_s: float) -> Iterator[Outcome]:
        """It is `time_s` now, and the market's window is where it belongs."""

    def on_solve(self, event: SolveFinished) -> Iterator[Outcome]:
        """A solver's answer."""

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another judge of the same zone."""


class ImmediateJudge:
    """See `Judge`: every bid is judged as it comes, and nothing is kept."""

    quote_remark = "this is what a bid would meet now"

    def __init__(self, auctioneer: Auctioneer, verdicts: Verdicts, live: LiveBytes) -> None:
        self._auctioneer = auctioneer
        self._verdicts = verdicts
        self._live = live

    def bid(self, event: JobSubmitted, request: Request) -> Iterator[Outcome]:
        appraisal = self._auctioneer.appraise(request)
        schedule, price = appraisal.schedule, appraisal.price
        if schedule is not None and price is not None and event.bid_micros > price.micros:
            full = self.full(event.user, event.task, schedule)
            if full is not None:
                # It had a plan, so it belongs into the bound.
                self._auctioneer.judge(event.bid_micros, request, appraisal)
                yield self._verdicts.rejected(event, "cell_full", full, appraisal)
                return
        award = self._auctioneer.decide(event.bid_micros, request, appraisal)
        if award is None:
            yield self._verdicts.rejected(event, *why_not(appraisal, event.bid_micros), appraisal)
        else:
            yield self._verdicts.admitted(event, request, appraisal, award)

    def full(self, user: str, task: Task, schedule: Schedule) -> str | None:  # noqa: ARG002
        return self._live.refuse_job(kept_bytes(task, len(schedule.placement.slots)))

    def has(self, job_id: str) -> bool:  # noqa: ARG002
        return False

    def withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        yield unknown_job(event.job_id)

    def on_clock(self, time_s: float) -> Iterator[Outcome]:  # noqa: ARG002
        yield from ()

    def on_solve(self, event: SolveFinished) -> Iterator[Outcome]:
        yield unknown_solve(event)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""


def unknown_job(job_id: str) -> EventIgnored:
    """What is said of a job that is not here any more, or never was."""
    return EventIgnored(reason="unknown_job", detail=f"job {job_id} is over or never won")


def unknown_solve(event: SolveFinished) -> EventIgnored:
    """What is said of an answer that nobody waits for."""
    return EventIgnored(
        reason="unknown_solve", detail=f"zone {event.zone} waits for no answer to request {event.request_id}"
    )
