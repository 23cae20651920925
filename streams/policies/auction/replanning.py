"""Replanning at the provider's cost, of jobs that are behind or whose nodes are lost or leaving."""

from collections.abc import Set

from schemas.auction.evidence import JobReplanned, Plan
from schemas.facts import Facts
from solvers.auction.market.demand import Demand, UnplannableError
from solvers.auction.market.fleet import Calendar
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.search import SEARCH_BUDGET_STEPS, Schedule
from streams.policies.auction.book import JobBook
from streams.policies.auction.offers import certificate_evidence, plan_of
from streams.policies.auction.planned_job import NODE_SLOT_BYTES, PlannedJob, Setback
from streams.policies.policy import ZoneContext

REPLAN_STEPS_PER_EVENT = 16_000_000
"""Most steps of search for the replanning of one event, such as a node's loss or a tick, exceeded by one job
at most. The other jobs wait for the next tick."""
_LEAST_STEPS = 250_000
"""Least steps of one search, even if thousands of jobs are due."""
_STEPS_WITHOUT_SEARCH = 50_000
"""Steps that a new plan counts for besides its search: reads and writes of the market, and its record."""


class Replanner:
    """Replanning of the jobs of one zone."""

    def __init__(
        self, context: ZoneContext, auctioneer: Auctioneer, calendar: Calendar, book: JobBook
    ) -> None:
        self._zone = context.zone
        self._auctioneer = auctioneer
        self._market = auctioneer.market
        self._welfare = auctioneer.welfare
        self._calendar = calendar
        self._book = book
        self._outlook = book.outlook
        self._live = context.live
        self._outcomes = context.outcomes
        fleet = self._market.fleet
        self._leaving = {fleet.row_of[node] for node in context.nodes.leaving if node in fleet.row_of}
        """Rows of nodes from which jobs are evicted."""
        self._steps = 0
        """Steps of new plans by now."""

    def note_lapsed(self) -> None:
        """Mark every job to be replanned or ended that is short of samples and awaits no late report, at the
        begin of a slot.

        It checks every job with a past slot, whatever was reported: reports may stay away, but the clock
        ticks. So each job is checked within one slot after its last slot, or within `LATE_REPORT_SLOTS` if a
        report is awaited.
        """
        lapsed = self._outlook.present_slot - 1
        for job in self._book.jobs.values():
            short = job.started(lapsed) and self._outlook.spare_samples(job) < 0
            if short and not self._outlook.awaits_evidence(job):
                job.set_back("behind_plan")
        self._note_leaving()

    def lose_node(self, row: int) -> None:
        """Mark every job to be replanned that has a node-slot on a lost node, the present slot included."""
        slot = self._outlook.present_slot
        for job in self._book.jobs.values():
            job.lose_executor(row)
            interrupted = job.rows.get(slot) == row and job.reported_slot < slot
            if interrupted:
                job.lose_slot(slot)
            if interrupted or any(job.rows[ahead] == row for ahead in job.rows if ahead > slot):
                job.set_back("node_lost")

    def evict(self, row: int) -> None:
        """Mark every job to be replanned that is planned on a node which is to leave the zone."""
        self._leaving.add(row)
        self._note_leaving()

    @property
    def leaving_rows(self) -> Set[int]:
        """Rows of nodes that are to be free of jobs."""
        return self._leaving

    def keep(self, row: int) -> None:
        self._leaving.discard(row)

    def replan_due(self) -> None:
        """Replan the marked jobs, in the order of their admission, within the steps of one event."""
        stop_steps = self._steps + REPLAN_STEPS_PER_EVENT
        due = [(job, job.setback) for job in self._book.jobs.values() if job.setback is not None]
        for number, (job, setback) in enumerate(due):
            left_steps = stop_steps - self._steps
            if left_steps <= 0:
                return
            share_steps = min(max(left_steps // (len(due) - number), _LEAST_STEPS), SEARCH_BUDGET_STEPS)
            job.end_setback()
            rows = job.ahead(self._market.first_slot).rows
            if all(self._market.node_up[row] and row not in self._leaving for row in rows):
                self.check(job, setback, share_steps)
            else:
                self._replan(job, setback, share_steps)

    def check(self, job: PlannedJob, setback: Setback, budget_steps: int = SEARCH_BUDGET_STEPS) -> None:
        """Replan the remaining work of a job if its node-slots ahead do not suffice."""
        short = -self._outlook.spare_samples(job)
        if short <= 0 or (setback == "behind_plan" and self._outlook.awaits_evidence(job)):
            return
        if setback == "behind_plan" and 2 * job.lacking_samples > short:
            # A step that outlasts its slot uses the time of the next slots, whose runs begin late or never.
            facts: Facts = {
                "case": "plan_short",
                "short_samples": short,
                "lacking_samples": job.lacking_samples,
            }
            self._book.end_at_fault(job, "slower_than_declared", facts)
        else:
            self._replan(job, setback, budget_steps)

    def replan(self, job: PlannedJob, setback: Setback) -> None:
        """Plan the remaining work of a job again, or refund it if there is no plan."""
        self._replan(job, setback, SEARCH_BUDGET_STEPS)

    def _note_leaving(self) -> None:
        """Mark the jobs on leaving nodes to be replanned. A job that fits nowhere else stays, and is marked
        again at the begin of the next slot."""
        first_slot = self._market.first_slot
        for job in self._book.jobs.values() if self._leaving else ():
            if not self._leaving.isdisjoint(job.ahead(first_slot).rows):
                job.set_back("node_leaving")

    def _replan(self, job: PlannedJob, setback: Setback, budget_steps: int) -> None:
        self._steps += _STEPS_WITHOUT_SEARCH
        missing = job.remaining_samples - self._outlook.in_flight(job)
        if missing <= 0:
            saved = self._book.give_up_node_slots(job)
            self._welfare.replanned_micros += saved
            self._outcomes.add(
                self._replanned(job, setback, 0, Plan(vendor=None, node_slots=(), samples=0), -saved)
            )
            return
        first_slot = self._market.first_slot
        held = job.ahead(first_slot)
        before = self._auctioneer.operational_micros(job.demand, held)
        self._auctioneer.release(held, job.demand)
        self._book.forget_ahead(job)
        found = self._plan(job, missing, max(first_slot, job.ready_slot), budget_steps)
        if isinstance(found, dict) and setback == "node_leaving":
            # The promised plan has priority: the node leaves later.
            self._market.hold(held, job.demand)
            self._book.hold(job, held, job.demand)
            return
        if isinstance(found, dict):
            self._welfare.refunded_micros += before
            late = job.last_slot < first_slot
            facts = {"missing_samples": missing, "setback": setback, **found}
            self._book.refund(job, "deadline_passed" if late else setback, facts)
            return
        demand, schedule = found
        self._book.hold(job, schedule.placement, demand)
        job.note_lacking(-job.lacking_samples)  # the new plan includes them
        extra = schedule.operational_micros - before
        self._welfare.replanned_micros -= extra
        self._outcomes.add(
            self._replanned(job, setback, missing, plan_of(schedule, self._market.fleet.nodes), extra)
        )

    def _plan(
        self, job: PlannedJob, missing: int, first_slot: int, budget_steps: int
    ) -> tuple[Demand, Schedule] | Facts:
        """Return the demand of the missing samples and their schedule, whose room is reserved; or the facts
        why no plan was found."""
        try:
            demand = Demand.of(
                job.workload,
                missing,
                self._zone,
                self._market.fleet,
                self._calendar.slot_s,
                job.profiles,
            )
        except UnplannableError as error:
            return {"case": "unjudgeable", "because": error.reason, **error.facts}
        schedule = self._auctioneer.replan(
            demand, job.priced, job.density_micros, first_slot, job.last_slot, budget_steps
        )
        if schedule is None:
            return {"case": "no_plan", "last_slot": job.last_slot}
        self._steps += schedule.search_steps
        full = self._live.refuse_growth(NODE_SLOT_BYTES * len(schedule.placement.slots))
        if full is not None:
            self._auctioneer.release(schedule.placement, demand)
            return {**full, "case": "plan_too_long"}
        return demand, schedule

    def _replanned(
        self, job: PlannedJob, setback: Setback, missing: int, plan: Plan, extra_micros: int
    ) -> JobReplanned:
        return JobReplanned(
            job_id=job.job_id,
            zone=self._zone.id,
            reason=setback,
            first_slot=self._market.first_slot,
            remaining_samples=missing,
            plan=plan,
            extra_operational_micros=extra_micros,
            evidence=certificate_evidence(self._auctioneer),
        )
