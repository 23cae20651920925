"""A zone under the auction, or a baseline of it: events in, outcomes out."""

from collections.abc import Collection, Iterator
from typing import Any, Literal

from schemas.cells import CellConfigured, Zone
from schemas.decisions import EventIgnored, JobQuoted, NodeStatusChanged
from schemas.fleet import (
    CommandRefused,
    FleetEvent,
    NodeOffline,
    NodeOnline,
    NodeSilent,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.jobs import JobEvent, JobQuoteRequested, JobSubmitted, JobWithdrawalRequested, Task
from schemas.quotes import VendorLeft, VendorQuoted
from schemas.registry import Outcome
from schemas.solves import SolveFinished
from solvers.auction.market.demand import Demand, UnjudgeableError
from solvers.auction.market.fleet import Calendar, Fleet
from solvers.auction.market.vendors import vendor_options
from solvers.auction.mechanism.auctioneer import Appraisal, Auctioneer
from solvers.auction.mechanism.mechanism import Request
from solvers.compiled import Floats, Ints
from streams.cell.live_bytes import LiveBytes
from streams.cell.recent_ids import RecentIds
from streams.policies.auction.book import JobBook
from streams.policies.auction.job import slot_of_run
from streams.policies.auction.judge import Verdicts, unknown_job
from streams.policies.auction.nodes import NodeWatch
from streams.policies.auction.offers import priced
from streams.policies.auction.policies import judge_of, market_of, mechanism_of, opening_of, steepness_of

_WRITERS_AT_LEAST = 8
"""Users that share the window of ids of jobs that lost: none fills more than this part of it."""
_ANYBODY = ""
"""Whose ids of jobs that won are: no other user may bid under them, for their adapters lie under the id."""


class AuctionZone:
    """See `ZonePolicy`."""

    def __init__(self, cell: CellConfigured, zone: Zone, live: LiveBytes) -> None:
        self.zone = zone
        self.calendar = Calendar(cell.epoch_s, cell.slot_s)
        self.fleet = Fleet.of(cell, zone)
        market = market_of(zone.policy)(
            self.fleet,
            zone.horizon_slots,
            0,
            self._full_cost,
            opening_of(zone.policy, self.fleet, self.calendar),
        )
        self.auctioneer = Auctioneer(
            market, mechanism_of(zone.policy), steepness_of(zone.policy, zone.horizon_slots)
        )
        self.book = JobBook(zone, self.auctioneer, self.calendar, live)
        self._verdicts = Verdicts(zone, self.auctioneer, self.book, self.calendar)
        self.judge = judge_of(zone, self.auctioneer, self.calendar, self._verdicts, live)
        self.watch = NodeWatch()
        self.live = live
        self._quotes: dict[str, VendorQuoted] = {}
        window = -(-cell.duplicate_window_events // 2)
        self._won = RecentIds(window, window)
        self._lost = RecentIds(window, -(-window // _WRITERS_AT_LEAST))

    def knows_job(self, job_id: str, user: str) -> bool:
        return (
            job_id in self.book.jobs
            or self.judge.has(job_id)
            or self._won.knows(_ANYBODY, job_id)
            or self._lost.knows(user, job_id)
        )

    def watched_nodes(self) -> Collection[str]:
        return self.watch.watched

    def awaits_node(self, node: str) -> bool:
        return self.watch.awaits(node)

    def on_job(self, event: JobEvent) -> Iterator[Outcome]:
        match event:
            case JobSubmitted():
                yield from self._bid(event)
            case JobQuoteRequested():
                yield self._quote(event)
            case JobWithdrawalRequested():
                yield from self._withdraw(event)

    def on_quote(self, event: VendorQuoted | VendorLeft) -> None:
        if isinstance(event, VendorQuoted):
            self._quotes[event.vendor] = event
        else:
            self._quotes.pop(event.vendor, None)

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
            self.book.lose_executor(self.fleet.row_of[event.node])
        if isinstance(event, NodeOffline | NodeSilent):
            if self.watch.lose(event.node):
                if isinstance(event, NodeOffline):
                    yield from self._node_down(event.node, "offline", event.reason)
                else:
                    yield from self._node_down(event.node, "silent")
        else:
            if self.watch.hear(event.node):
                self.auctioneer.market.node_up[self.fleet.row_of[event.node]] = True
                yield NodeStatusChanged(zone=self.zone.id, node=event.node, status="up", reason="online")
            if isinstance(event, RunStarted | RunProgressed | RunFinished | RunFailed):
                yield from self._on_run(event)
            elif isinstance(event, CommandRefused):
                yield EventIgnored(
                    reason="command_refused",
                    detail=f"node {event.node} refuses command {event.command_id}, {event.reason}: "
                    f"{event.detail}",
                )

    def on_clock(self, time_s: float) -> Iterator[Outcome]:
        slot = self.calendar.slot_at(time_s)
        if slot > self.book.present_slot:
            self.auctioneer.advance(slot + 1)
            self.book.note_lapsed()
            yield from self.book.replan_due()
            yield from self.book.assignments()
            yield priced(self.zone.id, self.auctioneer, len(self.book.jobs))
        else:
            yield from self.book.replan_due()
        yield from self.judge.on_clock(time_s)

    def on_solve(self, event: SolveFinished) -> Iterator[Outcome]:
        yield from self.judge.on_solve(event)

    def state(self) -> dict[str, Any]:
        return {
            "auctioneer": self.auctioneer.state(),
            "jobs": self.book.state(),
            "judge": self.judge.state(),
            "watch": self.watch.state(),
            "quotes": [quote.model_dump_json() for quote in self._quotes.values()],
            "won": self._won.state(),
            "lost": self._lost.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.auctioneer.restore(state["auctioneer"])
        self.book.restore(state["jobs"])
        self.judge.restore(state["judge"])
        self.watch.restore(state["watch"])
        quotes = [VendorQuoted.model_validate_json(quote) for quote in state["quotes"]]
        self._quotes = {quote.vendor: quote for quote in quotes}
        self._won.restore(state["won"])
        self._lost.restore(state["lost"])

    def _full_cost(self, class_index: int, slots: Ints) -> Floats:
        return self.fleet.classes[class_index].full_cost_micros(slots, self.calendar)

    def _bid(self, event: JobSubmitted) -> Iterator[Outcome]:
        try:
            request = self.request(event.job_id, event.task)
        except UnjudgeableError as error:
            # No scheduler could have found it a plan, so nothing is added to the bound.
            yield self._verdicts.rejected(event, error.reason, error.detail, None)
        else:
            yield from self.judge.bid(event, request)
        if event.job_id in self.book.jobs or self.judge.has(event.job_id):
            self._won.note(_ANYBODY, event.job_id)
        else:
            self._lost.note(event.user, event.job_id)

    def _quote(self, event: JobQuoteRequested) -> JobQuoted:
        found: Appraisal | UnjudgeableError
        full = None
        try:
            found = self.auctioneer.appraise(self.request(event.quote_id, event.task))
        except UnjudgeableError as error:
            found = error
        else:
            if found.schedule is not None:
                full = self.judge.full(event.user, event.task, found.schedule)
        return self._verdicts.quoted(event, found, self.judge.quote_remark, full)

    def _withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        job = self.book.jobs.get(event.job_id)
        if job is None:
            yield from self.judge.withdraw(event)
        elif job.user != event.user:
            yield EventIgnored(reason="not_the_owner", detail=f"job {event.job_id} is of another user")
        elif job.started(self.auctioneer.market.first_slot):
            yield EventIgnored(reason="job_already_started", detail=f"job {event.job_id} has started")
        else:
            yield from self.book.withdraw(job)

    def _on_run(self, event: RunStarted | RunProgressed | RunFinished | RunFailed) -> Iterator[Outcome]:
        job = self.book.jobs.get(event.job_id)
        if job is None:
            yield unknown_job(event.job_id)
            return
        slot = slot_of_run(event.run_id, event.job_id)
        if slot is None:
            yield EventIgnored(
                reason="stale_report", detail=f"job {event.job_id} has no run {event.run_id} in this zone"
            )
            return
        if job.rows.get(slot) != self.fleet.row_of[event.node] or slot > self.book.present_slot:
            yield EventIgnored(
                reason="stale_report",
                detail=f"job {event.job_id} was not assigned to node {event.node} in slot {slot}",
            )
            return
        if slot < job.run_slot and not isinstance(event, RunFinished):
            # A job has moved on since: what it had done by then says nothing of where it is.
            yield EventIgnored(
                reason="stale_report",
                detail=f"job {event.job_id} runs in slot {job.run_slot}, the report is of slot {slot}",
            )
            yield from self.book.overtake(job, slot, event)
            return
        match event:
            case RunStarted():
                yield from self.book.start(job, slot, event)
            case RunProgressed():
                yield from self.book.progress(job, slot, event)
            case RunFailed():
                job.report(slot, event.samples_done, complete=False)
                yield from self.book.fail(job, slot, event.error, event.permanent)
            case RunFinished() if event.samples_done >= job.task.work_samples:
                yield from self.book.complete(job, event)
            case RunFinished():
                yield EventIgnored(
                    reason="stale_report",
                    detail=f"job {event.job_id} is not finished at {event.samples_done} of "
                    f"{job.task.work_samples} samples",
                )

    def _node_down(
        self, node: str, reason: Literal["offline", "silent"], detail: str = ""
    ) -> Iterator[Outcome]:
        row = self.fleet.row_of[node]
        self.auctioneer.market.node_up[row] = False
        yield NodeStatusChanged(zone=self.zone.id, node=node, status="down", reason=reason, detail=detail)
        self.book.lose_node(row)
        yield from self.book.replan_due()

    def request(self, id: str, task: Task) -> Request:
        """What the auctioneer is asked for a task.

        Raises:
            UnjudgeableError: if no plan could be looked for.
        """
        return Request(
            id=id,
            demand=Demand.of(task, task.work_samples, self.zone, self.fleet, self.calendar.slot_s),
            options=vendor_options(self._quotes, task, self.calendar.slot_s),
            first_slot=self.auctioneer.market.first_slot,
            last_slot=self.calendar.last_slot_by(task.deadline_s),
        )
