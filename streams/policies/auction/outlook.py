"""The expected progress of a job's runs: whether it suffices for its work, and who is responsible if not."""

import math

from schemas.cells import Zone
from schemas.fleet import RunProgressed
from solvers.auction.market.demand import memory_rests_on_declaration, speed_rests_on_declaration
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market
from streams.policies.auction.job import PlannedJob

LATE_REPORT_SLOTS = 32
"""Slots for which a missing report of a run is awaited if its user is responsible for its speed, and its
executor has not failed since."""


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
        """Return the samples that a job's node-slots are expected to train beyond its work; negative if they
        fall short."""
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
        """Return the samples that a run fell short of the user's declared speed in its time.

        0 if the speed does not rest on the user's declaration, or if the start of the run is unknown.
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
        return speed_rests_on_declaration(job.workload, self._zone, gpu_type)

    def memory_limit_gib(self, job: PlannedJob) -> float | None:
        """Return the memory reserved for the job, if its user is responsible for the amount; else None."""
        return job.demand.memory_gib if memory_rests_on_declaration(job.workload, self._zone) else None

    def awaits_evidence(self, job: PlannedJob) -> bool:
        """Return whether a late report of a run will show the cause of its delay.

        The run began, its executor has not failed since, and its user is responsible for its speed.
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
