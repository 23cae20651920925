"""A zone under the auction policy: events in, outcomes out."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Literal

from schemas.cells import CellConfigured, Zone
from schemas.decisions import (
    EventIgnored,
    JobAdmitted,
    JobQuoted,
    JobRejected,
    NodeStatusChanged,
    Offer,
)
from schemas.fleet import (
    FleetEvent,
    NodeHeartbeat,
    NodeOffline,
    NodeOnline,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.jobs import (
    JobEvent,
    JobQuoteRequested,
    JobSubmitted,
    JobWithdrawalRequested,
    RejectionReason,
    Task,
)
from schemas.quotes import VendorLeft, VendorQuoted
from schemas.registry import Outcome
from solvers.auction.auctioneer import Appraisal, Auctioneer, Pricing
from solvers.auction.calendar import Calendar
from solvers.auction.demand import Demand, UnjudgeableError
from solvers.auction.fleet import Fleet
from solvers.auction.market import Market
from solvers.auction.vendors import vendor_options
from streams.auction.book import JobBook
from streams.auction.job import Job
from streams.auction.nodes import NodeWatch
from streams.auction.offers import certificate_of, offer_of
from streams.auction.prices import priced

_DIGEST_BYTES = 16


class AuctionZone:
    """See `ZonePolicy`."""

    def __init__(self, cell: CellConfigured, zone: Zone) -> None:
        self.zone = zone
        self.calendar = Calendar(cell.epoch_s, cell.slot_s)
        self.fleet = Fleet.of(cell, zone)
        policy = zone.policy
        self.auctioneer = Auctioneer(
            Market(self.fleet, zone.horizon_slots, 0, self._full_cost),
            Pricing(
                payment=policy.payment,
                order=policy.order,
                alpha=policy.max_value_per_compute_micros / policy.money_unit_micros,
                beta=policy.max_value_per_memory_micros / policy.money_unit_micros,
                max_density_micros=policy.max_density_units * policy.money_unit_micros,
            ),
        )
        self.book = JobBook(zone, self.auctioneer, self.calendar)
        self.watch = NodeWatch(cell.node_timeout_s)
        self._time_s = cell.epoch_s
        self._quotes: dict[str, VendorQuoted] = {}
        self._decided: OrderedDict[bytes, None] = OrderedDict()
        self._decided_limit = cell.duplicate_window_events

    def knows_job(self, job_id: str) -> bool:
        return job_id in self.book.jobs or _digest(job_id) in self._decided

    def on_job(self, event: JobEvent) -> Iterator[Outcome]:
        match event:
            case JobSubmitted():
                yield self._bid(event)
            case JobQuoteRequested():
                yield self._quote(event)
            case JobWithdrawalRequested():
                yield from self._withdraw(event)

    def on_quote(self, event: VendorQuoted | VendorLeft) -> Iterator[Outcome]:
        if isinstance(event, VendorQuoted):
            self._quotes[event.vendor] = event
        else:
            self._quotes.pop(event.vendor, None)
        yield from ()

    def on_fleet(self, event: FleetEvent) -> Iterator[Outcome]:
        if isinstance(event, NodeOnline):
            held, wanted = event.base_model, self.zone.base_model
            self.watch.allow(event.node, held == wanted)
            if held != wanted:
                yield EventIgnored(
                    reason="wrong_base_model", detail=f"node {event.node} holds {held}, not {wanted}"
                )
                if self.watch.lose(event.node):
                    yield from self._node_down(event.node, "offline")
                return
        if isinstance(event, NodeOffline):
            if self.watch.lose(event.node):
                yield from self._node_down(event.node, "offline")
        else:
            if self.watch.hear(event.node, self._time_s):
                self.auctioneer.market.node_up[self.fleet.row_of[event.node]] = True
                yield NodeStatusChanged(zone=self.zone.id, node=event.node, status="up", reason="online")
            if not isinstance(event, NodeOnline | NodeHeartbeat):
                yield from self._on_run(event)

    def on_clock(self, time_s: float) -> Iterator[Outcome]:
        self._time_s = time_s
        for node in self.watch.silent(time_s):
            self.watch.lose(node)
            yield from self._node_down(node, "silent")
        slot = self.calendar.slot_at(time_s)
        if slot > self.book.present_slot:
            self.auctioneer.market.advance(slot + 1)
            yield from self.book.check_lapsed()
            yield from self.book.assignments()
            yield priced(self.zone.id, self.auctioneer, len(self.book.jobs))

    def state(self) -> dict[str, Any]:
        return {
            "market": self.auctioneer.market.state(),
            # Amounts may outgrow 64 bits over the years, so they travel as text.
            "dual_bound_micros": str(self.auctioneer.dual_bound.micros),
            "welfare_micros": str(self.auctioneer.welfare_micros),
            "jobs": self.book.state(),
            "watch": self.watch.state(),
            "time_s": self._time_s,
            "quotes": [quote.model_dump_json() for quote in self._quotes.values()],
            "decided": b"".join(self._decided),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.auctioneer.market.restore(state["market"])
        self.auctioneer.dual_bound.micros = int(state["dual_bound_micros"])
        self.auctioneer.welfare_micros = int(state["welfare_micros"])
        self.book.restore(state["jobs"])
        self.watch.restore(state["watch"])
        self._time_s = state["time_s"]
        quotes = [VendorQuoted.model_validate_json(quote) for quote in state["quotes"]]
        self._quotes = {quote.vendor: quote for quote in quotes}
        decided = state["decided"]
        self._decided = OrderedDict.fromkeys(
            decided[start : start + _DIGEST_BYTES] for start in range(0, len(decided), _DIGEST_BYTES)
        )

    def _full_cost(self, class_index: int, slot: int) -> float:
        return self.fleet.classes[class_index].full_cost_micros(
            self.calendar.start_s(slot), self.calendar.slot_s
        )

    def _bid(self, event: JobSubmitted) -> Outcome:
        self._remember_decided(event.job_id)
        try:
            demand, appraisal = self._appraise(event.task)
        except UnjudgeableError as error:
            return self._rejected(event, error.reason, error.detail, None)
        award = self.auctioneer.decide(event.bid_micros, demand, appraisal)
        offer = offer_of(appraisal, self.fleet.nodes, self.calendar)
        if award is None:
            return self._rejected(event, *_why_not(appraisal, event.bid_micros), offer)
        first_slot = self.auctioneer.market.first_slot
        critical = self.zone.policy.payment == "critical"
        job = Job(
            job_id=event.job_id,
            user=event.user,
            task=event.task,
            bid_micros=event.bid_micros,
            payment_micros=award.payment_micros,
            refundable_micros=award.schedule.operational_micros if critical else 0,
            density_micros=award.density_micros,
            gain_micros=award.gain_micros,
            ready_slot=first_slot + award.schedule.vendor_delay_slots,
            last_slot=self.calendar.last_slot_by(event.task.deadline_s),
            demand=demand,
        )
        job.plan(award.schedule.placement, demand, self.fleet.class_of_row)
        self.book.jobs[job.job_id] = job
        return JobAdmitted(
            job_id=event.job_id,
            user=event.user,
            zone=self.zone.id,
            reason="bid_above_price",
            bid_micros=event.bid_micros,
            payment_micros=award.payment_micros,
            offer=offer,
            certificate=certificate_of(self.auctioneer),
        )

    def _rejected(
        self, event: JobSubmitted, reason: RejectionReason, detail: str, offer: Offer | None
    ) -> JobRejected:
        return JobRejected(
            job_id=event.job_id,
            user=event.user,
            zone=self.zone.id,
            reason=reason,
            detail=detail,
            bid_micros=event.bid_micros,
            offer=offer,
            certificate=certificate_of(self.auctioneer),
        )

    def _quote(self, event: JobQuoteRequested) -> JobQuoted:
        reason: RejectionReason | Literal["plan_found"]
        try:
            _, appraisal = self._appraise(event.task)
        except UnjudgeableError as error:
            offer, reason, detail = None, error.reason, error.detail
        else:
            offer = offer_of(appraisal, self.fleet.nodes, self.calendar)
            if appraisal.schedule is None:
                reason, detail = _why_not(appraisal, 0)
            else:
                reason, detail = "plan_found", "this is what a bid would meet now"
        return JobQuoted(
            quote_id=event.quote_id, zone=self.zone.id, reason=reason, detail=detail, offer=offer
        )

    def _withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        job = self.book.jobs.get(event.job_id)
        if job is None:
            yield EventIgnored(reason="unknown_job", detail=f"job {event.job_id} is over or never won")
        elif job.user != event.user:
            yield EventIgnored(reason="not_the_owner", detail=f"job {event.job_id} is of another user")
        elif job.started(self.auctioneer.market.first_slot):
            yield EventIgnored(reason="job_already_started", detail=f"job {event.job_id} has started")
        else:
            yield from self.book.withdraw(job)

    def _on_run(self, event: RunStarted | RunProgressed | RunFinished | RunFailed) -> Iterator[Outcome]:
        job = self.book.jobs.get(event.job_id)
        if job is None:
            yield EventIgnored(reason="unknown_job", detail=f"job {event.job_id} is over or never won")
            return
        if job.rows.get(event.slot) != self.fleet.row_of[event.node] or event.slot > self.book.present_slot:
            yield EventIgnored(
                reason="stale_report",
                detail=f"job {event.job_id} was not assigned to node {event.node} in slot {event.slot}",
            )
            return
        if event.slot < job.run_slot and not isinstance(event, RunFinished):
            # A job has moved on since: what it had done by then says nothing of where it is.
            yield EventIgnored(
                reason="stale_report",
                detail=f"job {event.job_id} runs in slot {job.run_slot}, the report is of slot {event.slot}",
            )
            return
        match event:
            case RunStarted():
                job.start_run(event.slot, event.samples_done)
                yield from self.book.check(job, "behind_plan")
            case RunProgressed():
                job.report(event.slot, event.samples_done, event.slot_complete)
                if event.slot_complete:
                    yield from self.book.check(job, "behind_plan")
            case RunFailed():
                job.report(event.slot, event.samples_done, slot_complete=False)
                yield from self.book.fail(job, event.slot, event.error, event.permanent)
            case RunFinished() if event.samples_done >= job.task.work_samples:
                yield from self.book.complete(job, event)
            case RunFinished():
                yield EventIgnored(
                    reason="stale_report",
                    detail=f"job {event.job_id} is not finished at {event.samples_done} of "
                    f"{job.task.work_samples} samples",
                )

    def _node_down(self, node: str, reason: Literal["offline", "silent"]) -> Iterator[Outcome]:
        row = self.fleet.row_of[node]
        self.auctioneer.market.node_up[row] = False
        yield NodeStatusChanged(zone=self.zone.id, node=node, status="down", reason=reason)
        yield from self.book.lose_node(row)

    def _appraise(self, task: Task) -> tuple[Demand, Appraisal]:
        demand = Demand.of(task, task.work_samples, self.zone, self.fleet, self.calendar.slot_s)
        first_slot = self.auctioneer.market.first_slot
        last_slot = self.calendar.last_slot_by(task.deadline_s)
        options = vendor_options(self._quotes, task, self.calendar.slot_s)
        return demand, self.auctioneer.appraise(demand, options, first_slot, last_slot)

    def _remember_decided(self, job_id: str) -> None:
        self._decided[_digest(job_id)] = None
        if len(self._decided) > self._decided_limit:
            self._decided.popitem(last=False)


def _why_not(appraisal: Appraisal, bid_micros: int) -> tuple[RejectionReason, str]:
    """Why a bid loses against an appraisal."""
    schedule, room = appraisal.schedule, appraisal.room
    if schedule is not None and bid_micros <= schedule.critical_micros:
        return (
            "price_not_below_bid",
            f"the bid of {bid_micros} is not above the price: {schedule.lowest_winning_bid_micros} wins",
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


def _digest(job_id: str) -> bytes:
    return hashlib.blake2b(job_id.encode(), digest_size=_DIGEST_BYTES).digest()
