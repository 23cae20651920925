"""Admission control of Titan (section 5.1): the bids of a slot wait for one solve, and are decided together.

A cell never blocks on a solver, so there may be less room at the answer than at the request. A plan that is
malformed, or whose node-slots are no longer free, is not applied: its bid is rejected, with the reason.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Self

from schemas.auction.batches import BatchSolution, SolvedPlan
from schemas.auction.settings import TitanPolicy
from schemas.decisions import EventIgnored, JobRejected, JobWithdrawn, RejectionReason
from schemas.facts import Fact, Facts
from schemas.solves import SolveFinished
from solvers.auction.baselines.on_arrival import drawn_vendor, in_time
from solvers.auction.market.demand import UnplannableError
from solvers.auction.market.fleet import Calendar
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.mechanism import Request
from solvers.auction.mechanism.search import Schedule, describe
from streams.cell.jobs import Job
from streams.cell.live_bytes import Refusal
from streams.policies.auction.admission import Admission, AdmissionControl, Bid, Verdicts, losing_reason
from streams.policies.auction.batch import (
    WaitingBid,
    batch_request,
    demand_of,
    packed,
    placement_of_plan,
    slots_for,
    unpacked,
)
from streams.policies.auction.offers import certificate_evidence
from streams.policies.auction.planned_job import ZONE_BYTES
from streams.policies.ignored import unknown_solve
from streams.policies.policy import ZoneContext

MOST_BIDS = 200
"""Most bids of one request: some tens of milliseconds of the cell's time at its answer. The others wait for
the request of the next slot."""
_Fault = tuple[RejectionReason, Facts]
"""Reason and facts of a solver's plan that is not applied."""


class BatchAdmissionControl(AdmissionControl):
    """Decides about the bids of a slot together."""

    quote_facts: Mapping[str, Fact] = MappingProxyType({"case": "decided_together"})

    def __init__(
        self,
        context: ZoneContext,
        policy: TitanPolicy,
        auctioneer: Auctioneer,
        calendar: Calendar,
        verdicts: Verdicts,
    ) -> None:
        super().__init__(context, auctioneer, verdicts)
        self._zone = context.zone
        self._policy = policy
        self._market = auctioneer.market
        self._calendar = calendar
        self._waiting: dict[str, WaitingBid] = {}
        """Bids since the last request, by job."""
        self._asked: dict[str, dict[str, WaitingBid]] = {}
        """Bids without an answer yet, by request and job."""
        self._requests = 0
        self._asked_slot = -1
        """Slot of the last request."""

    def bid(self, bid: Bid, request: Request) -> None:
        """Keep a bid for its slot's solve. The vendor is drawn now, and the bound grows now: the offline
        optimum would schedule the task from the present slot to the present end of the horizon. So no later
        slot is used, although the horizon moves while the bid waits."""
        appraisal = self._auctioneer.appraise(request)
        counted = self._auctioneer.count_bid(bid.bid_micros, request, appraisal)
        option = drawn_vendor(request, slots_for(request, self._market))
        if option is None:
            self._lose(bid, appraisal)
            return
        waiting_bytes = bid.job.state_bytes + ZONE_BYTES
        full = self._live.refuse_waiting(bid.job.user, waiting_bytes) or self._live.refuse_job(ZONE_BYTES)
        if full is not None:
            self._outcomes.add(self._verdicts.rejected(bid, "cell_full", full, appraisal))
        else:
            horizon_end = self._market.first_slot + self._market.horizon_slots - 1
            request = request._replace(options=[option], last_slot=min(request.last_slot, horizon_end))
            self._waiting[request.id] = WaitingBid(bid, request, counted)
            self._count(self._waiting[request.id])

    def full(self, user: str, job_bytes: int, schedule: Schedule) -> Refusal:  # noqa: ARG002
        waiting_bytes = job_bytes + ZONE_BYTES
        return self._live.refuse_waiting(user, waiting_bytes) or self._live.refuse_job(waiting_bytes)

    def has(self, job_id: str) -> bool:
        return any(job_id in bids for bids in (self._waiting, *self._asked.values()))

    def withdraw(self, job: Job) -> None:
        """Remove a bid that is not decided yet, at no charge."""
        batches = (self._waiting, *self._asked.values())
        held = next(bids for bids in batches if job.job_id in bids)
        waiting = held[job.job_id]
        self._forget(held, waiting)
        self._auctioneer.prices.withdrawn(waiting.counted)
        self._outcomes.add(
            JobWithdrawn(
                job_id=job.job_id,
                user=job.user,
                zone=self._zone.id,
                reason="user_request",
                returned_micros=0,
                retained_micros=0,
                evidence=certificate_evidence(self._auctioneer),
            )
        )

    def on_clock(self, time_s: float) -> None:
        """Request a solve once per slot, in its last half: the next slot can still be planned, so no slot is
        lost by deciding together. Without a tick in that half, the first tick after it makes the request."""
        for bids in self._asked.values():
            self._reject_late(bids)
        self._asked = {id: bids for id, bids in self._asked.items() if bids}
        slot = self._calendar.slot_at(time_s)
        last_half = time_s >= self._calendar.start_s(slot) + self._calendar.slot_s / 2
        overdue = self._asked_slot < slot - 1 and any(
            bid.request.first_slot <= slot for bid in self._waiting.values()
        )
        if overdue or (last_half and self._asked_slot < slot):
            self._ask(slot)

    def on_solve(self, event: SolveFinished) -> None:
        """Decide about a batch: admit the bids whose plans still hold, in the order of their arrival, and
        then reject the others."""
        bids = self._asked.pop(event.request_id, None)
        if bids is None:
            self._outcomes.add(unknown_solve(event))
            return
        for bid in bids.values():
            self._uncount(bid)
        solution = event.solution
        if not isinstance(solution, BatchSolution):
            solution = BatchSolution(status="none", plans=(), bound_micros=None)
        plans: dict[str, list[SolvedPlan]] = {}
        for plan in solution.plans:
            plans.setdefault(plan.job_id, []).append(plan)
        if unknown := sorted(plans.keys() - bids.keys()):
            self._outcomes.add(
                EventIgnored(
                    reason="unknown_job",
                    facts={"case": "bids_gone", "request_id": event.request_id, "job_ids": tuple(unknown)},
                )
            )
        faults: dict[str, _Fault | None] = {}
        for job_id, bid in bids.items():
            verdict = self._apply(bid, plans.get(job_id, []))
            if isinstance(verdict, Admission):
                self._outcomes.extend(verdict.outcomes)
            else:
                faults[job_id] = verdict
        for job_id, fault in faults.items():
            self._outcomes.add(self._rejected(bids[job_id], fault, solution, event.solve_s))

    def describe(self) -> dict[str, Any]:
        return {
            "jobs": {
                job_id: {
                    **waiting.bid.job.describe(),
                    "bid_micros": waiting.bid.bid_micros,
                    "solver_request": request_id,
                }
                for request_id, bids in ((None, self._waiting), *self._asked.items())
                for job_id, waiting in bids.items()
            },
            "solver_requests": list(self._asked),
        }

    def inherit(self, before: Self) -> None:
        """Keep the waiting bids; a task that can no longer be planned is rejected."""
        self._waiting, self._asked = before._waiting, before._asked
        self._requests, self._asked_slot = before._requests, before._asked_slot
        for bids in (self._waiting, *self._asked.values()):
            for job_id, held in list(bids.items()):
                try:
                    demand = demand_of(held.bid, self._zone, self._market.fleet, self._calendar)
                except UnplannableError as error:
                    self._forget(bids, held)
                    self._outcomes.add(self._verdicts.rejected(held.bid, error.reason, error.facts, None))
                else:
                    bids[job_id] = replace(held, request=held.request._replace(demand=demand))

    def state(self) -> dict[str, Any]:
        return {
            "waiting": packed(self._waiting),
            "asked": [[id, packed(bids)] for id, bids in self._asked.items()],
            "requests": self._requests,
            "asked_slot": self._asked_slot,
        }

    def restore(self, state: dict[str, Any], jobs: Mapping[str, Job]) -> None:
        self._waiting = self._unpacked(state["waiting"], jobs)
        self._asked = {id: self._unpacked(bids, jobs) for id, bids in state["asked"]}
        self._requests = state["requests"]
        self._asked_slot = state["asked_slot"]

    def _unpacked(self, state: list[list[Any]], jobs: Mapping[str, Job]) -> dict[str, WaitingBid]:
        bids = unpacked(state, jobs, self._zone, self._market.fleet, self._calendar)
        for bid in bids.values():
            self._count(bid)
        return bids

    def _ask(self, slot: int) -> None:
        self._reject_late(self._waiting)
        if not self._waiting:
            return
        self._requests += 1
        request_id = f"batch-{self._requests}"
        asked = dict(islice(self._waiting.items(), MOST_BIDS))
        self._outcomes.add(
            batch_request(self._zone.id, request_id, self._policy, self._market, asked.values())
        )
        self._asked[request_id] = asked
        self._waiting = {job_id: bid for job_id, bid in self._waiting.items() if job_id not in asked}
        self._asked_slot = slot

    def _reject_late(self, bids: dict[str, WaitingBid]) -> None:
        """Reject the bids whose vendor leaves no time to train, even in an empty zone."""
        for bid in list(bids.values()):
            request = self._present(bid)
            if not in_time(request, slots_for(request, self._market)):
                self._forget(bids, bid)
                self._lose(bid.bid, self._auctioneer.appraise(request))

    def _present(self, bid: WaitingBid) -> Request:
        """Return a bid's request for the remaining slots: its vendor begins at its admission."""
        return bid.request._replace(first_slot=self._market.first_slot)

    def _apply(self, bid: WaitingBid, plans: list[SolvedPlan]) -> Admission | _Fault | None:
        """Admit a bid with its plan; or return the fault of the plan, or None without a plan."""
        if not plans:
            return None
        if len(plans) > 1:
            return "plan_not_feasible", {"case": "planned_twice"}
        request = self._present(bid)
        placement = placement_of_plan(plans[0], request, self._market)
        if isinstance(placement, dict):
            return "plan_not_feasible", placement
        schedule = describe(self._market, request.demand, request.options[0], placement)
        appraisal = self._auctioneer.appraise_plan(request, schedule)
        price = appraisal.price
        assert price is not None, "there is a plan"
        if bid.bid.bid_micros <= price.micros:
            facts = {"price_micros": price.micros, "bid_micros": bid.bid.bid_micros}
            return "plan_not_feasible", {"case": "costs_too_much", **facts}
        full = self._live.refuse_job(self._verdicts.bytes_of(schedule))
        if full is not None:
            return "cell_full", full
        award = self._auctioneer.award(bid.bid.bid_micros, request.demand, schedule, price, bid.counted)
        if award is None:
            return "plan_not_feasible", {"case": "room_gone"}
        return self._verdicts.admit(bid.bid, request, appraisal, award)

    def _forget(self, bids: dict[str, WaitingBid], bid: WaitingBid) -> None:
        del bids[bid.bid.job.job_id]
        self._uncount(bid)

    def _count(self, bid: WaitingBid) -> None:
        self._live.add(ZONE_BYTES)
        self._live.add_waiting(bid.bid.job.user, bid.state_bytes)

    def _uncount(self, bid: WaitingBid) -> None:
        self._live.add(-ZONE_BYTES)
        self._live.add_waiting(bid.bid.job.user, -bid.state_bytes)

    def _rejected(
        self, bid: WaitingBid, fault: _Fault | None, solution: BatchSolution, solve_s: float
    ) -> JobRejected:
        appraisal = self._auctioneer.appraise(self._present(bid))
        if fault is not None:
            reason, facts = fault
        elif appraisal.price is None or bid.bid.bid_micros <= appraisal.price.micros:
            reason, facts = losing_reason(appraisal, bid.bid.bid_micros)
        elif solution.status == "none":
            reason, facts = "solver_found_nothing", {"solve_s": solve_s}
        else:
            reason, facts = "not_in_schedule", {}
        return self._verdicts.rejected(bid.bid, reason, facts, appraisal)
