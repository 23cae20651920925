"""A zone under the auction, or a baseline of it."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from schemas.auction.bids import Task
from schemas.base import Event, Outcome
from schemas.decisions import EventIgnored
from schemas.facts import Fact
from schemas.fleet import (
    RunFailed,
    RunFinished,
    RunProgressed,
    RunReport,
    RunStarted,
)
from schemas.jobs import JobQuoteRequested
from schemas.lora import LoraWorkload
from schemas.solves import SolveFinished
from solvers.auction.market.demand import NO_PROFILES, Demand, Profiles, UnplannableError
from solvers.auction.market.fleet import Calendar, Fleet
from solvers.auction.mechanism.auctioneer import Appraisal
from solvers.auction.mechanism.mechanism import Request
from solvers.compiled import Floats, Ints
from streams.cell.jobs import Job
from streams.cell.live_bytes import Refusal, job_bytes
from streams.cell.nodes import NodeChange
from streams.policies.auction.admission import Bid, Verdicts
from streams.policies.auction.book import JobBook
from streams.policies.auction.invariants import broken_invariants, broken_promises
from streams.policies.auction.offers import basis_of, certificate_of, class_prices, priced
from streams.policies.auction.planned_job import profiles_bytes, slot_of_run
from streams.policies.auction.policies import admission_control_of, auctioneer_of, market_of, opening_of
from streams.policies.auction.profiles import measure, profiles_of
from streams.policies.auction.replanning import Replanner
from streams.policies.auction.runs import AuctionRuns
from streams.policies.auction.vendors import Vendors
from streams.policies.ignored import no_such_run
from streams.policies.policy import BrokenPromise, ZoneContext


class AuctionZone:
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        self._jobs = context.jobs
        self._loans = context.loans
        self._outcomes = context.outcomes
        self._profiles = context.profiles
        self._time_s: float | None = None
        self._build(context, first_slot=0)

    def _build(self, context: ZoneContext, first_slot: int) -> None:
        """Build everything that depends on the configuration, without jobs."""
        cell, zone = context.cell, context.zone
        self.zone = zone
        self.calendar = Calendar(cell.epoch_s, cell.slot_s)
        self.fleet = Fleet.of(cell, zone)
        market = market_of(zone.policy)(
            self.fleet,
            zone.horizon_slots,
            first_slot,
            self._full_cost,
            opening_of(zone.policy, self.fleet, self.calendar),
        )
        self.auctioneer = auctioneer_of(zone.policy, market, self.calendar)
        self.live = context.live
        self.book = JobBook(context, self.auctioneer, self.calendar)
        self.replanner = Replanner(context, self.auctioneer, self.calendar, self.book)
        self.vendors = Vendors(context, self.auctioneer, self.calendar, self.book, self.replanner)
        self._runs = AuctionRuns(self.book, self.replanner, self.vendors)
        self._verdicts = Verdicts(zone, self.auctioneer, self.book, self.vendors, self.calendar)
        self.admission = admission_control_of(context, self.auctioneer, self.calendar, self._verdicts)
        self._close_borrowed()

    def _close_borrowed(self) -> None:
        """Close servers on loan after the slot in which they may be due: their owner's notice from now."""
        market = self.auctioneer.market
        for server, loan in self._loans.items():
            if loan.borrower == self.zone.id and server in self.fleet.row_of:
                ends = (
                    -1 if self._time_s is None else self.calendar.last_slot_by(self._time_s + loan.notice_s)
                )
                market.closes_at[self.fleet.row_of[server]] = ends + 1

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        return next(broken_promises(self.auctioneer.market, self.book.jobs, context), None)

    def reconfigured(self, context: ZoneContext) -> None:
        fleet, auctioneer, book = self.fleet, self.auctioneer, self.book
        admission, vendors = self.admission, self.vendors
        self._build(context, auctioneer.market.first_slot)
        row_of = {row: self.fleet.row_of[id] for id, row in fleet.row_of.items() if id in self.fleet.row_of}
        self.auctioneer.inherit(auctioneer)
        self.book.inherit(book, row_of)
        self.vendors.inherit(vendors)
        self.admission.inherit(admission)

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        return [node for node in nodes if not self.book.occupies(self.fleet.row_of[node])]

    def submitted(self, job: Job) -> None:
        task = Task.of(job)
        bid = Bid.of(job, self._profiles_of(task.workload, job.user))
        try:
            request = self.request(job.job_id, task, bid.profiles)
        except UnplannableError as error:
            # No scheduler could find a plan for it, so nothing is added to the bound.
            self._outcomes.add(self._verdicts.rejected(bid, error.reason, error.facts, None))
        else:
            self.admission.bid(bid, request)

    def withdrawn(self, job: Job) -> None:
        planned = self.book.jobs.get(job.job_id)
        if planned is None:
            self.admission.withdraw(job)
        elif planned.started(self.auctioneer.market.first_slot):
            self._outcomes.add(EventIgnored(reason="job_already_started", facts={"job_id": job.job_id}))
        else:
            self.book.withdraw(planned)

    def quote(self, request: JobQuoteRequested) -> Outcome:
        task = Task.of(request)
        profiles = self._profiles_of(task.workload, request.user)
        found: Appraisal | UnplannableError
        full: Refusal = None
        try:
            found = self.auctioneer.appraise(self.request(request.quote_id, task, profiles))
        except UnplannableError as error:
            found = error
        else:
            if found.schedule is not None:
                full = self.admission.full(
                    request.user,
                    job_bytes(request.workload, request.terms) + profiles_bytes(profiles),
                    found.schedule,
                )
        return self._verdicts.quoted(
            request, task.workload, profiles, found, self.admission.quote_facts, full
        )

    def run_changed(self, job: Job, report: RunReport) -> bool:
        planned = self.book.jobs.get(job.job_id)
        if planned is None:
            self._outcomes.add(_stale("no_verdict_yet", job))
            return False
        slot = slot_of_run(report.run_id, job.job_id)
        if slot is None:
            self._outcomes.add(no_such_run(report))
            return False
        if planned.rows.get(slot, -1) != self.fleet.row_of.get(report.node) or slot > self.book.present_slot:
            self._outcomes.add(_stale("not_assigned", job, node=report.node, slot=slot))
            return False
        if slot < planned.run_slot and not isinstance(report, RunFinished):
            # A later run has overtaken it: its samples are not the progress of the job.
            self._outcomes.add(_stale("overtaken", job, slot=slot, run_slot=planned.run_slot))
            self._runs.overtake(planned, slot, report)
            return False
        match report:
            case RunStarted():
                self._runs.start(planned, slot, report)
            case RunProgressed():
                gpu_type = self.fleet.classes[self.fleet.class_of_row[planned.rows[slot]]].gpu_type
                gpu = next(gpu for gpu in self.zone.gpu_types if gpu.name == gpu_type)
                measure(planned.workload, job.user, report, gpu, self.zone, self._profiles)
                self._runs.progress(planned, slot, report)
            case RunFailed():
                self._runs.fail(planned, slot, report)
            case RunFinished(adapter_path=None):
                self._outcomes.add(_stale("no_adapter", job))
            case RunFinished() if report.samples_done >= planned.workload.work_samples:
                self.book.complete(planned, report)
            case RunFinished():
                samples = planned.workload.work_samples
                self._outcomes.add(
                    _stale("not_finished", job, samples_done=report.samples_done, work_samples=samples)
                )
        return True

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self.run_changed(job, failed)

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return sorted(servers, key=lambda server: (*self.book.need_of(self.fleet.row_of[server]), server))[
            :count
        ]

    def nodes_changed(self, change: NodeChange) -> None:
        row, market = self.fleet.row_of[change.node], self.auctioneer.market
        match change.status:
            case "restarted":
                self._runs.lose_executor(row)
            case "up":
                market.node_up[row] = True
            case "down":
                market.node_up[row] = False
                self.replanner.lose_node(row)
                self.replanner.replan_due()
            case "cordoned":
                market.node_open[row] = False
            case "leaving":
                market.node_open[row] = False
                self.replanner.evict(row)
                self.replanner.replan_due()
            case "open":
                market.node_open[row] = True
                self.replanner.keep(row)

    def apply(self, event: Event) -> None:
        self.vendors.apply(event)

    def wake(self, time_s: float) -> None:
        self._time_s = time_s
        self._close_borrowed()
        slot = self.calendar.slot_at(time_s)
        if slot > self.book.present_slot:
            self.auctioneer.advance(slot + 1)
            self.vendors.note_late()
            self.replanner.note_lapsed()
            self.replanner.replan_due()
            self.book.assignments()
            self._outcomes.add(priced(self.zone.id, self.auctioneer, len(self.book.jobs)))
        else:
            self.replanner.replan_due()
        self.admission.on_clock(time_s)

    def solved(self, answer: SolveFinished) -> None:
        self.admission.on_solve(answer)

    def broken_invariants(self) -> Iterator[str]:
        yield from broken_invariants(self.zone, self.auctioneer, self.book, self.admission, self._jobs)

    @property
    def present_slot(self) -> int:
        """Slot that runs now."""
        return self.book.present_slot

    def describe(self) -> dict[str, Any]:
        """Describe the zone. Prices are figures by class of nodes, as in `ZonePriced`."""
        market, book, waiting = self.auctioneer.market, self.book, self.admission.describe()
        planned = {id: job.describe(self.fleet.nodes, book.present_slot) for id, job in book.jobs.items()}
        basis = basis_of(self.auctioneer.prices.basis)
        return {
            "slot": book.present_slot,
            "horizon": {"first_slot": market.first_slot, "slots": market.horizon_slots},
            **waiting,
            "jobs": {**planned, **waiting["jobs"]},
            "nodes": {node: self._described_node(row) for row, node in enumerate(self.fleet.nodes)},
            "prices": [each.model_dump(mode="json") for each in class_prices(self.auctioneer)],
            "price_basis": None if basis is None else basis.model_dump(mode="json"),
            "certificate": certificate_of(self.auctioneer).model_dump(mode="json"),
            "vendor_quotes": {
                vendor: quote.model_dump(mode="json", exclude={"cell", "vendor"})
                for vendor, quote in self.vendors.quotes.items()
            },
        }

    def _described_node(self, row: int) -> dict[str, Any]:
        """Describe a node; what is free is summed over the slots ahead."""
        market = self.auctioneer.market
        return {
            "up": bool(market.node_up[row]),
            "open": bool(market.node_open[row]),
            "leaving": row in self.replanner.leaving_rows,
            "free_samples": math.fsum(market.free_samples[:, row].tolist()),
            "samples": float(market.capacity_samples[row]) * market.horizon_slots,
        }

    def state(self) -> dict[str, Any]:
        return {
            "auctioneer": self.auctioneer.state(),
            "jobs": self.book.state(),
            "judge": self.admission.state(),
            "quotes": self.vendors.state(),
            "time_s": self._time_s,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.auctioneer.restore(state["auctioneer"])
        self.book.restore(state["jobs"], self._jobs)
        self.admission.restore(state["judge"], self._jobs)
        self.vendors.restore(state["quotes"])
        self._time_s = state["time_s"]
        self._close_borrowed()

    def _profiles_of(self, workload: LoraWorkload, user: str) -> Profiles:
        if not self.zone.policy.takes_profiles:
            return NO_PROFILES
        return profiles_of(workload, user, self.zone, self._profiles)

    def request(self, id: str, task: Task, profiles: Profiles = NO_PROFILES) -> Request:
        """Return the request to the auctioneer for a task.

        Raises:
            UnplannableError: if no plan can be searched.
        """
        return Request(
            id=id,
            demand=Demand.of(
                task.workload,
                task.workload.work_samples,
                self.zone,
                self.fleet,
                self.calendar.slot_s,
                profiles,
            ),
            options=self.vendors.options(task.workload),
            first_slot=self.auctioneer.market.first_slot,
            last_slot=self.calendar.last_slot_by(task.deadline_s),
        )

    def _full_cost(self, class_index: int, slots: Ints) -> Floats:
        return self.fleet.classes[class_index].full_cost_micros(slots, self.calendar)


def _stale(case: str, job: Job, **facts: Fact) -> EventIgnored:
    return EventIgnored(reason="stale_report", facts={"case": case, "job_id": job.job_id, **facts})
