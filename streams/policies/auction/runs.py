"""Reports of nodes about the runs of a zone's jobs, and their effects."""

from schemas.facts import Facts, quoted
from schemas.fleet import RunFailed, RunProgressed, RunReport, RunStarted
from schemas.lora_commands import MEMORY_TOLERANCE_GIB
from streams.policies.auction.book import JobBook
from streams.policies.auction.planned_job import PlannedJob
from streams.policies.auction.replanning import Replanner
from streams.policies.auction.vendors import Vendors
from streams.policies.orders import facts_of_failure


class AuctionRuns:
    """Runs of the jobs of one zone."""

    def __init__(self, book: JobBook, replanner: Replanner, vendors: Vendors) -> None:
        self._book = book
        self._replanner = replanner
        self._vendors = vendors
        self._outlook = book.outlook

    def start(self, job: PlannedJob, slot: int, report: RunStarted) -> None:
        """Apply a run's start, which reports its checkpoint and the size of its data."""
        job.start_run(slot, report.samples_done)
        dataset, counted = job.workload.dataset, report.dataset_samples
        if job.workload.needs_preprocessing and counted is not None and counted > dataset.samples:
            facts: Facts = {
                "path": quoted(dataset.path),
                "counted_samples": counted,
                "declared_samples": dataset.samples,
            }
            self._book.end_at_fault(job, "dataset_size_misstated", facts)
        else:
            self._replanner.check(job, "behind_plan")

    def progress(self, job: PlannedJob, slot: int, report: RunProgressed) -> None:
        """Apply a run's progress. Work that its slot left undone is replanned, unless the task was slower or
        used more memory than its user declared."""
        expected = self._outlook.expected_spare_samples(job, slot)
        job.report(slot, report.samples_done, report.complete)
        if self._exceeds_memory(job, report.memory_gib):
            self._end_as_too_large(job, slot, report)
            return
        if not report.complete:
            return
        lacking = self._outlook.lacking_samples(job, slot, report)
        job.end_run(slot)
        job.note_lacking(lacking)
        if lacking > max(expected, 0) and self._outlook.spare_samples(job) < 0:
            self._end_as_too_slow(job, slot, report, lacking)
        else:
            self._replanner.check(job, "behind_plan")

    def overtake(self, job: PlannedJob, slot: int, report: RunReport) -> None:
        """Apply the end of a run that a later one has overtaken. Its samples do not count, but its time may
        show that the task is slower than its user declared."""
        if isinstance(report, RunStarted) or (isinstance(report, RunProgressed) and not report.complete):
            return
        lacking = self._outlook.lacking_samples(job, slot, report) if isinstance(report, RunProgressed) else 0
        expected = self._outlook.expected_spare_samples(job, slot)
        job.end_run(slot)
        if isinstance(report, RunProgressed) and lacking > max(expected, 0):
            self._end_as_too_slow(job, slot, report, lacking)

    def lose_executor(self, row: int) -> None:
        """Apply the restart of a node's executor: no user is responsible for the time of its runs."""
        for job in self._book.jobs.values():
            job.lose_executor(row)

    def fail(self, job: PlannedJob, slot: int, report: RunFailed) -> None:
        """Apply a slot's failed run; end the job if the failure is permanent."""
        job.report(slot, report.samples_done, complete=False)
        job.lose_slot(slot)
        if self._exceeds_memory(job, report.memory_gib):
            self._end_as_too_large(job, slot, report)
            return
        job.end_run(slot)
        if report.cause == "data_differ" and job.order is not None and not job.awaits_delivery:
            self._vendors.refuse_data(job, job.order, report)
        elif report.permanent:
            self._book.end_at_fault(job, "run_failed", facts_of_failure(report))
        else:
            self._replanner.check(job, "run_failed")

    def _exceeds_memory(self, job: PlannedJob, memory_gib: float | None) -> bool:
        """Return whether a run used more memory than its user is responsible for."""
        limit_gib = self._outlook.memory_limit_gib(job)
        if memory_gib is None or limit_gib is None:
            return False
        return memory_gib > limit_gib + MEMORY_TOLERANCE_GIB

    def _end_as_too_large(self, job: PlannedJob, slot: int, report: RunProgressed | RunFailed) -> None:
        assert report.memory_gib is not None
        facts: Facts = {
            "slot": slot,
            "node": report.node,
            "memory_gib": report.memory_gib,
            "reserved_gib": job.demand.memory_gib,
        }
        self._book.end_at_fault(job, "memory_understated", facts)

    def _end_as_too_slow(self, job: PlannedJob, slot: int, report: RunProgressed, lacking: int) -> None:
        facts: Facts = {
            "case": "run_short",
            "slot": slot,
            "node": report.node,
            "node_s": report.node_s,
            "lacking_samples": lacking,
        }
        self._book.end_at_fault(job, "slower_than_declared", facts)
