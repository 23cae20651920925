"""What a job's runs are still expected to do: whether it is enough for its work, and who is responsible if
not.
"""

import math

from schemas.cells import Zone
from schemas.fleet import RunProgressed
from solvers.auction.market.demand import memory_rests_on_declaration, speed_rests_on_declaration
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Market
from streams.policies.auction.job import PlannedJob

LATE_REPORT_SLOTS = 32
"""So many slots the report of a run is waited for whose user answers for its speed, while nothing is heard of
the run's executor but that it lives."""


class Outlook:
    """Of the jobs of one zone, as of its market's present slot."""

    def __init__(self, zone: Zone, market: Market, calendar: Calendar) -> None:
        self._zone = zone
        self._market = market
        self._calendar = calendar

    @property
    def present_slot(self) -> int:
        """The slot whose commands are out; -1 before the first."""
        return self._market.first_slot - 1

    def spare_samples(self, job: PlannedJob) -> int:
        """What a job's node-slots are still expected to train beyond its work; negative where they fall
        short."""
        return job.planned_after(self.present_slot) + self.in_flight(job) - job.remaining_samples

    def expected_spare_samples(self, job: PlannedJob, slot: int) -> int:
        """What a job would have to spare if the run of a slot had trained its quota, and no more is known."""
        return self.spare_samples(job) + (self._expected(job, slot) if self._is_late(slot) else 0)

    def in_flight(self, job: PlannedJob) -> int:
        """Samples of the present and the last slot that are planned and not yet reported."""
        return sum(
            self._expected(job, slot)
            for slot in (self.present_slot - 1, self.present_slot)
            if slot > job.reported_slot
        )

    def lacking_samples(self, job: PlannedJob, slot: int, report: RunProgressed) -> int:
        """What a run has trained less than its user's word promises for the time that it had.

        0 where the zone itself knows how fast the task is, or where the run began is not known.
        """
        base_samples = job.runs.get(slot)
        if base_samples is None or not self.speed_is_declared(job, job.rows[slot]):
            return 0
        # A step that outlasts the slot goes on to use the node.
        promised = math.floor(job.quotas[slot] * (report.node_s / self._calendar.slot_s))
        return promised - (report.samples_done - base_samples)

    def speed_is_declared(self, job: PlannedJob, row: int) -> bool:
        """Whether the user answers for the job's speed on a node."""
        fleet = self._market.fleet
        gpu_type = fleet.classes[fleet.class_of_row[row]].gpu_type
        return speed_rests_on_declaration(job.workload, self._zone, gpu_type)

    def memory_limit_gib(self, job: PlannedJob) -> float | None:
        """What is reserved for the job, where its user answers for that being enough."""
        return job.demand.memory_gib if memory_rests_on_declaration(job.workload, self._zone) else None

    def awaits_evidence(self, job: PlannedJob) -> bool:
        """Whether a run is out whose late report will tell by whose fault it is late.

        It began, its executor has lived since, and its user answers for its speed.
        """
        return any(
            base_samples is not None
            and slot >= self.present_slot - LATE_REPORT_SLOTS
            and self._is_late(slot)
            and self.speed_is_declared(job, job.rows[slot])
            for slot, base_samples in job.runs.items()
        )

    def _is_late(self, slot: int) -> bool:
        """Whether a slot's report has been waited for long enough."""
        return slot < self.present_slot - 1

    @staticmethod
    def _expected(job: PlannedJob, slot: int) -> int:
        """What is left of a slot's quota."""
        done = job.job.samples_done - job.run_base_samples if slot == job.run_slot else 0
        return max(job.quotas.get(slot, 0) - done, 0)
