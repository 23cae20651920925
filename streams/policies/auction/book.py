"""The admitted jobs of a zone: their plans, expected progress, cancellation and completion."""

import math
from collections.abc import Mapping
from typing import Literal

from schemas.auction.deliveries import ClosingReason, PreprocessingClosed
from schemas.cells import Zone
from schemas.decisions import JobCompleted, JobRefunded, JobWithdrawn
from schemas.facts import Facts
from schemas.fleet import RunFinished, RunProgressed
from schemas.lora_commands import RunCancelled, RunOrder, SlotAssigned
from solvers.auction.market.demand import (
    Demand,
    Known,
    memory_rests_on_declaration,
    speed_rests_on_declaration,
)
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market, Placement
from solvers.auction.mechanism.auctioneer import Auctioneer
from streams.cell.jobs import Job
from streams.policies.auction.offers import certificate_evidence
from streams.policies.auction.planned_job import LATE_REPORT_SLOTS, PlannedJob, Setback, run_id_of
from streams.policies.auction.vendor_order import VendorOrder
from streams.policies.policy import ZoneContext


class Outlook:
    """Expected progress of the jobs of one zone, from its market's present slot on."""

    def __init__(self, zone: Zone, market: Market, calendar: Calendar) -> None:
        self._zone = zone
        self._market = market
        self._calendar = calendar

    @property
    def present_slot(self) -> int:
        """Slot of the latest commands; -1 before the first."""
        return self._market.first_slot - 1

    def spare_samples(self, job: PlannedJob) -> int:
        """Return the samples that a job's node-slots are expected to train beyond its work. The number is
        negative if they train less."""
        return job.planned_after(self.present_slot) + self.in_flight(job) - job.remaining_samples

    def expected_spare_samples(self, job: PlannedJob, slot: int) -> int:
        """Return the spare samples of a job if the run of a slot had trained its quota."""
        return self.spare_samples(job) + (self._expected(job, slot) if self._is_late(slot) else 0)

    def in_flight(self, job: PlannedJob) -> int:
        """Return the samples of the present and the last slot that are planned and not yet reported."""
        return sum(
            self._expected(job, slot)
            for slot in (self.present_slot - 1, self.present_slot)
            if slot > job.reported_slot
        )

    def lacking_samples(self, job: PlannedJob, slot: int, report: RunProgressed) -> int:
        """Return the samples that a run lacks to the user's declared speed in its time. It is 0 if the user
        did not declare the speed, or if the start of the run is unknown.
        """
        base_samples = job.runs.get(slot)
        if base_samples is None or not self.speed_is_declared(job, job.rows[slot]):
            return 0
        # A step that outlasts the slot continues to use the node.
        promised = math.floor(job.quotas[slot] * (report.node_s / self._calendar.slot_s))
        return promised - (report.samples_done - base_samples)

    def speed_is_declared(self, job: PlannedJob, row: int) -> bool:
        """Return whether the user is responsible for the job's speed on a node."""
        fleet = self._market.fleet
        gpu_type = fleet.classes[fleet.class_of_row[row]].gpu_type
        return speed_rests_on_declaration(job.workload, self._known(job), gpu_type)

    def memory_limit_gib(self, job: PlannedJob) -> float | None:
        """Return the memory reserved for the job, if its user is responsible for the amount; else None."""
        return job.demand.memory_gib if memory_rests_on_declaration(job.workload, self._known(job)) else None

    def _known(self, job: PlannedJob) -> Known:
        return Known.of(job.workload, self._zone, job.profiles)

    def awaits_evidence(self, job: PlannedJob) -> bool:
        """Return whether a late report of a run will show the cause of its delay. This needs a run that
        began, an executor that has not failed since, and a user who is responsible for the speed.
        """
        return any(
            base_samples is not None
            and slot >= self.present_slot - LATE_REPORT_SLOTS
            and self._is_late(slot)
            and self.speed_is_declared(job, job.rows[slot])
            for slot, base_samples in job.runs.items()
        )

    def _is_late(self, slot: int) -> bool:
        return slot < self.present_slot - 1

    @staticmethod
    def _expected(job: PlannedJob, slot: int) -> int:
        """Return the rest of a slot's quota."""
        done = job.job.samples_done - job.run_base_samples if slot == job.run_slot else 0
        return max(job.quotas.get(slot, 0) - done, 0)


Fault = Literal[
    "run_failed", "slower_than_declared", "memory_understated", "dataset_size_misstated", "dataset_unfit"
]
"""Reasons for which a job ends by its own fault."""


class JobBook:
    """Admitted jobs of one zone by id, in the order of their admission."""

    def __init__(self, context: ZoneContext, auctioneer: Auctioneer, calendar: Calendar) -> None:
        self.jobs: dict[str, PlannedJob] = {}
        self._live = context.live
        self._outcomes = context.outcomes
        self._zone = context.zone
        self._auctioneer = auctioneer
        self._market = auctioneer.market
        self._welfare = auctioneer.welfare
        self._fleet = auctioneer.market.fleet
        self._calendar = calendar
        self.outlook = Outlook(context.zone, auctioneer.market, calendar)

    @property
    def present_slot(self) -> int:
        """Slot of the latest commands; -1 before the first."""
        return self.outlook.present_slot

    def add(self, job: PlannedJob) -> None:
        self.jobs[job.job_id] = job
        self._live.add(job.state_bytes)

    def assignments(self) -> None:
        """Order the runs of the present slot, per node with a run."""
        slot = self.present_slot
        orders: dict[int, list[RunOrder]] = {}
        for job in self.jobs.values():
            row = job.rows.get(slot)
            if row is not None and not self._market.node_up[row]:
                job.lose_slot(slot)  # it is still to be replanned
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
                        dataset=job.dataset,
                        delivery=None if job.order is None else job.order.delivery,
                        source=None if job.order is None else job.workload.dataset.path,
                        hyperparameters=job.workload.hyperparameters,
                        speed_is_declared=self.outlook.speed_is_declared(job, row),
                        memory_limit_gib=self.outlook.memory_limit_gib(job),
                    )
                )
        for row in sorted(orders):
            self._outcomes.add(
                SlotAssigned(
                    zone=self._zone.id,
                    base_model=self._zone.base_model,
                    node=self._fleet.nodes[row],
                    slot=slot,
                    slot_start_s=self._calendar.start_s(slot),
                    slot_end_s=self._calendar.start_s(slot + 1),
                    runs=tuple(orders[row]),
                )
            )

    def complete(self, job: PlannedJob, report: RunFinished) -> None:
        """Complete a job whose work is done, and release its remaining node-slots."""
        self._welfare.finished_early_micros += self.give_up_node_slots(job)
        self._remove(job)
        self._outcomes.add(
            JobCompleted(
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
                evidence=certificate_evidence(self._auctioneer),
            )
        )

    def withdraw(self, job: PlannedJob) -> None:
        """Withdraw an unstarted job; its payment for operation is returned, as far as it is unspent."""
        returned_micros = self._unspent_micros(job)
        saved_micros = self.operational_ahead_micros(job)
        self._welfare.withdrawn_micros += saved_micros - job.bid_micros + job.welfare_micros
        self._welfare.planned_micros -= job.welfare_micros
        self._auctioneer.withdraw(job.ahead(self._market.first_slot), job.demand, job.counted)
        self.forget_ahead(job)
        self._remove(job)
        self._outcomes.add(
            JobWithdrawn(
                job_id=job.job_id,
                user=job.job.user,
                zone=self._zone.id,
                reason="user_request",
                returned_micros=returned_micros,
                retained_micros=job.payment_micros - returned_micros,
                evidence=certificate_evidence(self._auctioneer),
            )
        )
        self._end_order(job)

    def occupies(self, row: int) -> bool:
        """Return whether jobs need a node: it has planned jobs, or it is up and has unfinished runs."""
        market = self._market
        if (market.free_samples[:, row] < market.capacity_samples[row]).any():
            return True
        return bool(market.node_up[row]) and self._runs_on(row)

    def need_of(self, row: int) -> tuple[bool, float]:
        """Return how much jobs need a node, to compare nodes: whether a job runs there, and the planned work
        in full slots of the node."""
        market = self._market
        free = market.free_samples[:, row] / market.capacity_samples[row]
        return self._runs_on(row), market.horizon_slots - math.fsum(free.tolist())

    def _runs_on(self, row: int) -> bool:
        return any(
            job.rows[slot] == row and slot >= self.present_slot - 1
            for job in self.jobs.values()
            for slot in job.runs
        )

    def inherit(self, before: "JobBook", row_of: Mapping[int, int]) -> None:
        """Take over the jobs and plans of the zone's previous book, which had other nodes or costs.

        The provider bears the change of the plans' operational costs.

        Args:
            row_of: new row of each remaining node, by its old row.
        """
        for job in before.jobs.values():
            bytes_before, cost_before = job.state_bytes, before.operational_ahead_micros(job)
            job.move(row_of, job.demand.among(before._fleet, self._fleet))
            self.jobs[job.job_id] = job
            self._live.add(job.state_bytes - bytes_before)
            self._welfare.replanned_micros += cost_before - self.operational_ahead_micros(job)

    def state(self) -> list[bytes]:
        return [job.packed() for job in self.jobs.values()]

    def restore(self, state: list[bytes], jobs: Mapping[str, Job]) -> None:
        for packed in state:
            self.add(PlannedJob.unpack(packed, jobs))

    def refund(self, job: PlannedJob, reason: Setback | Literal["deadline_passed"], facts: Facts) -> None:
        """End a job without a fault of its user, and refund the whole payment."""
        self._welfare.refunded_micros += self.give_up_node_slots(job) - job.bid_micros
        self._end(job, reason, facts, job.payment_micros)

    def end_at_fault(self, job: PlannedJob, fault: Fault, facts: Facts) -> None:
        """End a job because of its task, its data or its declaration. The refund is at most that of a
        withdrawal. Otherwise, users would withdraw at no cost by a deliberate failure."""
        unspent_micros = self._unspent_micros(job)
        self._welfare.failed_micros += self.give_up_node_slots(job) - job.bid_micros
        self._end(job, fault, facts, unspent_micros)

    def _end(
        self,
        job: PlannedJob,
        reason: Setback | Fault | Literal["deadline_passed"],
        facts: Facts,
        refund_micros: int,
    ) -> None:
        self._remove(job)
        self._outcomes.add(
            JobRefunded(
                job_id=job.job_id,
                user=job.job.user,
                zone=self._zone.id,
                reason=reason,
                facts=facts,
                remaining_samples=job.remaining_samples,
                refund_micros=refund_micros,
                retained_micros=job.payment_micros - refund_micros,
                evidence=certificate_evidence(self._auctioneer),
            )
        )
        for row in job.resident_rows():
            self._outcomes.add(
                RunCancelled(zone=self._zone.id, node=self._fleet.nodes[row], job_id=job.job_id)
            )
        self._end_order(job)

    def close_order(self, job: PlannedJob, order: VendorOrder, reason: ClosingReason, facts: Facts) -> None:
        """End the order of a job without paying the vendor, which returns earlier payments."""
        self._welfare.undelivered_micros += order.price_micros
        job.set_order(order.closed())
        self._add_closed(job, order, reason, facts)

    def _end_order(self, job: PlannedJob) -> None:
        """Close the open order of a job that is over, whose price `_remove` has counted."""
        if job.order is not None and job.order.is_open:
            self._add_closed(job, job.order, "job_over", {})

    def _add_closed(self, job: PlannedJob, order: VendorOrder, reason: ClosingReason, facts: Facts) -> None:
        self._outcomes.add(
            PreprocessingClosed(
                zone=self._zone.id,
                vendor=order.vendor,
                order_id=order.order_id,
                job_id=job.job_id,
                reason=reason,
                facts=facts,
                returned_micros=0 if order.delivery is None else order.price_micros,
            )
        )

    def operational_ahead_micros(self, job: PlannedJob) -> int:
        """Return the operational cost of a job's node-slots ahead, which is not yet spent."""
        return self._auctioneer.operational_micros(job.demand, job.ahead(self._market.first_slot))

    def _unspent_micros(self, job: PlannedJob) -> int:
        """Return the part of a job's payment that covers the operational cost of its node-slots ahead."""
        return min(self.operational_ahead_micros(job), job.refundable_micros)

    def give_up_node_slots(self, job: PlannedJob) -> int:
        """Release a job's node-slots ahead, and return their unspent operational cost in micros."""
        saved_micros = self.operational_ahead_micros(job)
        first_slot = self._market.first_slot
        self._auctioneer.release(job.ahead(first_slot), job.demand)
        self.forget_ahead(job)
        return saved_micros

    def hold(self, job: PlannedJob, placement: Placement, demand: Demand) -> None:
        """Note a job's placement in the slots ahead, reserved with `demand`. It must hold none there."""
        bytes_before = job.state_bytes
        job.hold(placement, demand, self._fleet.class_of_row)
        self._live.add(job.state_bytes - bytes_before)

    def forget_ahead(self, job: PlannedJob) -> None:
        bytes_before = job.state_bytes
        job.forget(self._market.first_slot)
        self._live.add(job.state_bytes - bytes_before)

    def miss_slots(self, job: PlannedJob) -> bool:
        """Remove from a job's plan the slots that have begun without its data. Return whether there were
        any."""
        bytes_before = job.state_bytes
        is_late = job.miss_slots(self._market.first_slot)
        self._live.add(job.state_bytes - bytes_before)
        return is_late

    def _remove(self, job: PlannedJob) -> None:
        del self.jobs[job.job_id]
        self._live.add(-job.state_bytes)
        if job.order is not None and job.order.is_open:
            self._welfare.undelivered_micros += job.order.price_micros
