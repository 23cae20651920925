"""The admitted jobs of a zone: plans kept, made again, given up and completed."""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from schemas.auction.evidence import JobReplanned, Plan
from schemas.base import Outcome
from schemas.cells import Zone
from schemas.commands import RunCancelled, RunOrder, SlotAssigned
from schemas.decisions import JobCompleted, JobRefunded, JobWithdrawn
from schemas.fleet import RunFinished, RunProgressed, RunReport, RunStarted
from solvers.auction.market.demand import Demand, rests_on_declaration
from solvers.auction.market.fleet import Calendar
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.search import SEARCH_BUDGET_STEPS
from streams.cell.jobs import Job
from streams.cell.live_bytes import NODE_SLOT_BYTES, LiveBytes
from streams.policies.auction.job import PlannedJob, Setback, run_id_of
from streams.policies.auction.offers import plan_of, standing

Fault = Literal["run_failed", "slower_than_declared", "dataset_size_misstated"]
"""What a job may end for by its own fault."""

REPLAN_STEPS_PER_EVENT = 16_000_000
"""What is planned again because of one event, a node's loss or a tick, takes so many steps of search at most,
give or take one job: what is left waits for the next tick."""
_LEAST_STEPS = 250_000
"""The share of one search in that, where thousands of jobs are due."""
_STEPS_BESIDE_SEARCH = 50_000
"""What a new plan counts for besides its search: the market is read, written and told of."""

LATE_REPORT_SLOTS = 32
"""So many slots the report of a run is waited for whose user answers for its speed, while nothing is heard of
the run's executor but that it lives."""


class JobBook:
    """Jobs by id in the order of their admission."""

    def __init__(self, zone: Zone, auctioneer: Auctioneer, calendar: Calendar, live: LiveBytes) -> None:
        self.jobs: dict[str, PlannedJob] = {}
        self._live = live
        self._zone = zone
        self._auctioneer = auctioneer
        self._market = auctioneer.market
        self._welfare = auctioneer.welfare
        self._fleet = auctioneer.market.fleet
        self._calendar = calendar
        self._steps = 0
        """What new plans have taken by now."""

    @property
    def present_slot(self) -> int:
        """The slot whose commands are out; -1 before the first."""
        return self._market.first_slot - 1

    def add(self, job: PlannedJob) -> None:
        """Keep a job that was admitted."""
        self.jobs[job.job_id] = job
        self._live.add(job.state_bytes)

    def assignments(self) -> Iterator[SlotAssigned]:
        """What each node trains in the present slot, for the nodes that train anything."""
        slot = self.present_slot
        orders: dict[int, list[RunOrder]] = {}
        for job in self.jobs.values():
            row = job.rows.get(slot)
            if row is not None and not self._market.node_up[row]:
                job.lose_slot(slot)  # its turn to be planned again has not come
            elif row is not None and job.quotas[slot] and job.remaining_samples:
                job.order_run(slot)
                orders.setdefault(row, []).append(
                    RunOrder(
                        run_id=run_id_of(slot, job.job_id),
                        job_id=job.job_id,
                        user=job.job.user,
                        work_samples=job.workload.work_samples,
                        quota_samples=job.quotas[slot],
                        resume_samples=job.job.samples_done,
                        dataset=job.workload.dataset,
                        hyperparameters=job.workload.hyperparameters,
                        speed_is_declared=self._speed_is_declared(job, row),
                    )
                )
        for row in sorted(orders):
            yield SlotAssigned(
                zone=self._zone.id,
                base_model=self._zone.base_model,
                node=self._fleet.nodes[row],
                slot=slot,
                slot_start_s=self._calendar.start_s(slot),
                slot_end_s=self._calendar.start_s(slot + 1),
                runs=tuple(orders[row]),
            )

    def note_lapsed(self) -> None:
        """As a slot begins, have every job planned again, or ended, that is short of samples and waits for no
        late report.

        Whatever was reported of a job that has a slot behind it, it is looked at: a wait may end by a report,
        by news of a node or by nothing at all, and only the clock is sure to go on. So no job is left alone
        for more than one slot after its last one, or `LATE_REPORT_SLOTS` where it waits.
        """
        lapsed = self.present_slot - 1
        for job in self.jobs.values():
            if job.started(lapsed) and self._spare_samples(job) < 0 and not self._awaits_evidence(job):
                job.set_back("behind_plan")

    def replan_due(self) -> Iterator[Outcome]:
        """Plan the jobs again that were set back, in the order of their admission, as far as the steps of one
        event lead."""
        stop_steps = self._steps + REPLAN_STEPS_PER_EVENT
        due = [(job, job.setback) for job in self.jobs.values() if job.setback is not None]
        for number, (job, setback) in enumerate(due):
            left_steps = stop_steps - self._steps
            if left_steps <= 0:
                return
            share_steps = min(max(left_steps // (len(due) - number), _LEAST_STEPS), SEARCH_BUDGET_STEPS)
            job.end_setback()
            if all(self._market.node_up[row] for row in job.ahead(self._market.first_slot).rows):
                yield from self.check(job, setback, share_steps)
            else:
                yield from self._replan(job, setback, share_steps)

    def check(
        self, job: PlannedJob, setback: Setback, budget_steps: int = SEARCH_BUDGET_STEPS
    ) -> Iterator[Outcome]:
        """Plan the rest of a job again if the node-slots ahead of it no longer suffice."""
        short = -self._spare_samples(job)
        if short <= 0 or (setback == "behind_plan" and self._awaits_evidence(job)):
            return
        if setback == "behind_plan" and 2 * job.lacking_samples > short:
            # A step that outlasts its slot takes the time of the next ones, which then begin late or never.
            detail = (
                f"the plan is short of {short} samples, and its runs trained {job.lacking_samples} less than "
                "the declared speed promises for the time that they had"
            )
            yield from self._end_at_fault(job, "slower_than_declared", detail)
        else:
            yield from self._replan(job, setback, budget_steps)

    def start(self, job: PlannedJob, slot: int, report: RunStarted) -> Iterator[Outcome]:
        """Take note of a run's start, where its checkpoint and its data are seen."""
        job.start_run(slot, report.samples_done)
        dataset, counted = job.workload.dataset, report.dataset_samples
        if job.workload.needs_preprocessing and counted is not None and counted > dataset.samples:
            detail = (
                f"{dataset.path} holds {counted} samples, its vendor was paid to prepare {dataset.samples}"
            )
            yield from self._end_at_fault(job, "dataset_size_misstated", detail)
        else:
            yield from self.check(job, "behind_plan")

    def progress(self, job: PlannedJob, slot: int, report: RunProgressed) -> Iterator[Outcome]:
        """Take note of how far a run is. What its part of the slot left undone is planned again, unless the
        task itself was slower than its user declared."""
        expected = self._expected_spare_samples(job, slot)
        job.report(slot, report.samples_done, report.complete)
        if not report.complete:
            return
        lacking = self._lacking_samples(job, slot, report)
        job.end_run(slot)
        job.owe(lacking)
        if lacking > max(expected, 0) and self._spare_samples(job) < 0:
            yield from self._end_as_too_slow(job, slot, report, lacking)
        else:
            yield from self.check(job, "behind_plan")

    def overtake(self, job: PlannedJob, slot: int, report: RunReport) -> Iterator[Outcome]:
        """Take note of the end of a run that a later one has overtaken. What it has trained does not count,
        but how long it took may show that the task is slower than its user declared."""
        if isinstance(report, RunStarted) or (isinstance(report, RunProgressed) and not report.complete):
            return
        lacking = self._lacking_samples(job, slot, report) if isinstance(report, RunProgressed) else 0
        expected = self._expected_spare_samples(job, slot)
        job.end_run(slot)
        if isinstance(report, RunProgressed) and lacking > max(expected, 0):
            yield from self._end_as_too_slow(job, slot, report, lacking)

    def lose_executor(self, row: int) -> None:
        """Of what is out on a node whose executor has begun anew, nobody is to answer for the time."""
        for job in self.jobs.values():
            job.lose_executor(row)

    def lose_node(self, row: int) -> None:
        """Have every job planned again with a node-slot on a node that is down, the present slot's
        included."""
        slot = self.present_slot
        for job in self.jobs.values():
            job.lose_executor(row)
            interrupted = job.rows.get(slot) == row and job.reported_slot < slot
            if interrupted:
                job.lose_slot(slot)
            if interrupted or any(job.rows[ahead] == row for ahead in job.rows if ahead > slot):
                job.set_back("node_lost")

    def fail(self, job: PlannedJob, slot: int, error: str, permanent: bool) -> Iterator[Outcome]:
        """Count a slot's run as lost; give the job up if it can run nowhere."""
        job.lose_slot(slot)
        job.end_run(slot)
        if permanent:
            yield from self._end_at_fault(job, "run_failed", error)
        else:
            yield from self.check(job, "run_failed")

    def complete(self, job: PlannedJob, report: RunFinished) -> Iterator[Outcome]:
        """Close a job whose work is done and free what it did not need."""
        self._welfare.finished_early_micros += self._give_up_node_slots(job)
        self._remove(job)
        yield JobCompleted(
            job_id=job.job_id,
            user=job.job.user,
            zone=self._zone.id,
            reason="work_done",
            node=report.node,
            payment_micros=job.payment_micros,
            samples_done=report.samples_done,
            loss=report.loss,
            adapter_path=report.adapter_path,
            adapter_digest=report.adapter_digest,
            evidence=standing(self._auctioneer),
        )

    def withdraw(self, job: PlannedJob) -> Iterator[Outcome]:
        """Close an unstarted job at its user's wish; what it paid for operation goes back, if not spent."""
        returned_micros = self._unspent_micros(job)
        self._welfare.withdrawn_micros += self._give_up_node_slots(job) - job.bid_micros + job.welfare_micros
        self._welfare.planned_micros -= job.welfare_micros
        self._auctioneer.dual_bound.take_back(job.gain_micros)
        self._remove(job)
        yield JobWithdrawn(
            job_id=job.job_id,
            user=job.job.user,
            zone=self._zone.id,
            reason="user_request",
            returned_micros=returned_micros,
            retained_micros=job.payment_micros - returned_micros,
            evidence=standing(self._auctioneer),
        )

    def state(self) -> list[bytes]:
        """Everything, of types that msgpack writes."""
        return [job.packed() for job in self.jobs.values()]

    def restore(self, state: list[bytes], jobs: Mapping[str, Job]) -> None:
        """Take what `state` was taken of, of these live jobs."""
        for packed in state:
            self.add(PlannedJob.unpack(packed, jobs))

    def _spare_samples(self, job: PlannedJob) -> int:
        """What a job's node-slots are still expected to train beyond its work; negative where they fall
        short."""
        present_slot = self.present_slot
        ahead = sum(quota for slot, quota in job.quotas.items() if slot > present_slot)
        return ahead + self._in_flight(job) - job.remaining_samples

    def _lacking_samples(self, job: PlannedJob, slot: int, report: RunProgressed) -> int:
        """What a run has trained less than its user's word promises for the time that it had.

        0 where the zone itself knows how fast the task is, or where the run began is not known.
        """
        base_samples = job.runs.get(slot)
        if base_samples is None or not self._speed_is_declared(job, job.rows[slot]):
            return 0
        # A step that outlasts the slot goes on to use the node.
        promised = math.floor(job.quotas[slot] * (report.node_s / self._calendar.slot_s))
        return promised - (report.samples_done - base_samples)

    def _speed_is_declared(self, job: PlannedJob, row: int) -> bool:
        """Whether the user answers for the job's speed on a node."""
        gpu_type = self._fleet.classes[self._fleet.class_of_row[row]].gpu_type
        return rests_on_declaration(job.workload, self._zone, gpu_type)

    def _awaits_evidence(self, job: PlannedJob) -> bool:
        """Whether a run is out whose late report will tell by whose fault it is late.

        It began, its executor has lived since, and its user answers for its speed.
        """
        return any(
            base_samples is not None
            and slot >= self.present_slot - LATE_REPORT_SLOTS
            and self._is_late(slot)
            and self._speed_is_declared(job, job.rows[slot])
            for slot, base_samples in job.runs.items()
        )

    def _is_late(self, slot: int) -> bool:
        """Whether a slot's report has been waited for long enough."""
        return slot < self.present_slot - 1

    def _expected_spare_samples(self, job: PlannedJob, slot: int) -> int:
        """What a job would have to spare if the run of a slot had trained its quota, and no more is known."""
        return self._spare_samples(job) + (self._expected(job, slot) if self._is_late(slot) else 0)

    def _in_flight(self, job: PlannedJob) -> int:
        """Samples of the present and the last slot that are planned and not yet reported."""
        return sum(
            self._expected(job, slot)
            for slot in (self.present_slot - 1, self.present_slot)
            if slot > job.reported_slot
        )

    @staticmethod
    def _expected(job: PlannedJob, slot: int) -> int:
        """What is left of a slot's quota."""
        done = job.job.samples_done - job.run_base_samples if slot == job.run_slot else 0
        return max(job.quotas.get(slot, 0) - done, 0)

    def _replan(self, job: PlannedJob, setback: Setback, budget_steps: int) -> Iterator[Outcome]:
        self._steps += _STEPS_BESIDE_SEARCH
        first_slot = self._market.first_slot
        missing = job.remaining_samples - self._in_flight(job)
        if missing <= 0:
            saved = self._give_up_node_slots(job)
            self._welfare.replanned_micros += saved
            yield self._replanned(job, setback, 0, Plan(vendor=None, node_slots=(), samples=0), -saved)
            return
        held = job.ahead(first_slot)
        before = self._auctioneer.operational_micros(job.demand, held)
        demand = Demand.of(job.workload, missing, self._zone, self._fleet, self._calendar.slot_s)
        schedule = self._auctioneer.replan(
            demand,
            held,
            job.demand,
            job.priced,
            job.density_micros,
            max(first_slot, job.ready_slot),
            job.last_slot,
            budget_steps,
        )
        self._forget_ahead(job)
        self._steps += 0 if schedule is None else schedule.search_steps
        if schedule is None:
            self._welfare.refunded_micros += before
            late = job.last_slot < first_slot
            yield from self._refund(
                job,
                "deadline_passed" if late else setback,
                f"{missing} samples are left and no plan trains them by slot {job.last_slot} ({setback})",
            )
            return
        full = self._live.refuse_growth(NODE_SLOT_BYTES * len(schedule.placement.slots))
        if full is not None:
            self._market.release(schedule.placement, demand)
            self._welfare.refunded_micros += before
            detail = f"{missing} samples are left and their plan is too long to keep ({setback}): {full}"
            yield from self._refund(job, setback, detail)
            return
        bytes_before = job.state_bytes
        job.plan(schedule.placement, demand, self._fleet.class_of_row)
        self._live.add(job.state_bytes - bytes_before)
        extra = schedule.operational_micros - before
        self._welfare.replanned_micros -= extra
        yield self._replanned(job, setback, missing, plan_of(schedule, self._fleet.nodes), extra)

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
            evidence=standing(self._auctioneer),
        )

    def _refund(
        self, job: PlannedJob, reason: Setback | Literal["deadline_passed"], detail: str
    ) -> Iterator[Outcome]:
        """Give a job up whose user is not to blame: all of the payment goes back."""
        self._welfare.refunded_micros += self._give_up_node_slots(job) - job.bid_micros
        yield from self._end(job, reason, detail, job.payment_micros)

    def _end_as_too_slow(
        self, job: PlannedJob, slot: int, report: RunProgressed, lacking: int
    ) -> Iterator[Outcome]:
        detail = (
            f"slot {slot}: {report.node_s:.1f} s of node {report.node} trained {lacking} samples "
            "less than the declared speed promises, and the other cells do not make up for that"
        )
        yield from self._end_at_fault(job, "slower_than_declared", detail)

    def _end_at_fault(self, job: PlannedJob, fault: Fault, detail: str) -> Iterator[Outcome]:
        """Give a job up for what its task, its data or its declaration is: its user gets back no more than a
        withdrawal gives, or failing on purpose would be a free way out."""
        unspent_micros = self._unspent_micros(job)
        self._welfare.failed_micros += self._give_up_node_slots(job) - job.bid_micros
        yield from self._end(job, fault, detail, unspent_micros)

    def _end(
        self,
        job: PlannedJob,
        reason: Setback | Fault | Literal["deadline_passed"],
        detail: str,
        refund_micros: int,
    ) -> Iterator[Outcome]:
        self._remove(job)
        yield JobRefunded(
            job_id=job.job_id,
            user=job.job.user,
            zone=self._zone.id,
            reason=reason,
            detail=detail,
            remaining_samples=job.remaining_samples,
            refund_micros=refund_micros,
            retained_micros=job.payment_micros - refund_micros,
            evidence=standing(self._auctioneer),
        )
        # The node of the last report keeps the job for its next part.
        slots = sorted(slot for slot in {*job.runs, job.reported_slot} if slot in job.rows)
        for row in dict.fromkeys(job.rows[slot] for slot in slots):
            yield RunCancelled(zone=self._zone.id, node=self._fleet.nodes[row], job_id=job.job_id)

    def _operational_ahead_micros(self, job: PlannedJob) -> int:
        """What the node-slots ahead of a job cost to run: not yet spent."""
        return self._auctioneer.operational_micros(job.demand, job.ahead(self._market.first_slot))

    def _unspent_micros(self, job: PlannedJob) -> int:
        """What a job has paid for operation and its node-slots ahead would have cost."""
        return min(self._operational_ahead_micros(job), job.refundable_micros)

    def _give_up_node_slots(self, job: PlannedJob) -> int:
        """Free the node-slots ahead of a job, and return their operational cost in micros, which is not
        spent."""
        saved_micros = self._operational_ahead_micros(job)
        first_slot = self._market.first_slot
        self._market.release(job.ahead(first_slot), job.demand)
        self._forget_ahead(job)
        return saved_micros

    def _forget_ahead(self, job: PlannedJob) -> None:
        bytes_before = job.state_bytes
        job.forget(self._market.first_slot)
        self._live.add(job.state_bytes - bytes_before)

    def _remove(self, job: PlannedJob) -> None:
        del self.jobs[job.job_id]
        self._live.add(-job.state_bytes)
