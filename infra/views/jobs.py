"""The present state of a cell's jobs and their runs, folded from its log."""

from collections import Counter
from dataclasses import dataclass, field

from schemas.base import Outcome
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobOutcome,
    JobRefunded,
    JobRejected,
    JobStateName,
)
from schemas.fleet import (
    NodeOffline,
    NodeOnline,
    NodeSilent,
    RunFinished,
    RunProgressed,
    RunReport,
    RunStarted,
)
from schemas.jobs import JobSubmitted


@dataclass
class Job:
    """Present state of a job."""

    job_id: str
    user: str = ""
    submission: JobSubmitted | None = None
    """First submission of this user under this id; None where only decisions and reports were read yet."""
    state: JobStateName = "waiting"
    reason: str = ""
    """Reason of a rejection or a refund."""
    payment_micros: int | None = None
    """Payment of its user, less refunds. None where the job was not admitted."""
    nodes: set[str] = field(default_factory=set)
    """Nodes on which it runs now."""
    samples_done: int = 0
    present_run: str | None = None
    """ReportedRun that has started last: later reports of other runs do not change the progress."""
    first_loss: float | None = None
    """First reported loss; None without reports before the end of a run."""
    loss: float | None = None
    finish_run: str | None = None
    """ReportedRun in which its work was done."""
    completed: JobCompleted | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self.state not in ("waiting", "admitted")

    @property
    def offered_micros(self) -> int | None:
        """The most that its user would pay, if the terms have it."""
        return None if self.submission is None else self.submission.terms.offered_micros


@dataclass
class ReportedRun:
    """State of a run by its reports."""

    first_samples: int
    """Samples of the job when the run began."""
    samples_done: int
    time_s: float = 0.0
    """Time of the cell's clock at the latest report; 0 before the first tick."""


@dataclass
class Jobs:
    """Folds events and decisions, each in their order. Two topics have no common order: a decision may be
    read before the event that it is about."""

    by_id: dict[str, Job] = field(default_factory=dict)
    runs: dict[tuple[str, str, str], ReportedRun] = field(default_factory=dict)
    """Runs by job, node and the run's id."""
    rejections: Counter[str] = field(default_factory=Counter)
    """Number of rejections by reason, those of repeated submissions included."""
    _read: set[tuple[str, str]] = field(default_factory=set)
    """Users and event ids of submissions; a cell ignores duplicates."""
    _submissions: dict[tuple[str, str], JobSubmitted] = field(default_factory=dict)
    """First submission of each user under each job id, which is the one that counts."""
    _reported_early: dict[str, Job] = field(default_factory=dict)
    """Jobs of which only reports were read yet; they may not exist."""
    _time_s: float = 0.0

    @property
    def submitted(self) -> int:
        """Number of submissions, repeated ones included."""
        return len(self._read)

    def in_state(self, state: JobStateName) -> list[Job]:
        """Return the jobs in a state."""
        return [job for job in self.by_id.values() if job.state == state]

    def take_event(self, envelope: Envelope) -> None:
        """Fold a ledger event."""
        match event := envelope.event:
            case JobSubmitted() if (event.user, envelope.id) not in self._read:
                self._read.add((event.user, envelope.id))
                self._submissions.setdefault((event.user, event.job_id), event)
                job = self._job(event.job_id)
                if job.user in ("", event.user) or job.state == "rejected":
                    self._assign(job, event.user)
            case RunReport():
                self._report(self._reported(event.job_id), event)
            case NodeOnline() | NodeOffline() | NodeSilent():
                # No run goes on when a node leaves or comes back.
                for job in self.by_id.values():
                    job.nodes.discard(event.node)
            case ClockTicked():
                self._time_s = max(self._time_s, event.time_s)

    def take_decision(self, outcome: Outcome) -> None:
        """Fold a decision."""
        if isinstance(outcome, JobRejected):
            self.rejections[outcome.reason] += 1
        if isinstance(outcome, JobOutcome) and not outcome.is_of_another_job:
            self._apply(self._job(outcome.job_id), outcome)

    def _job(self, job_id: str) -> Job:
        return self.by_id.setdefault(job_id, self._reported_early.pop(job_id, Job(job_id)))

    def _reported(self, job_id: str) -> Job:
        known = self.by_id.get(job_id)
        return known or self._reported_early.setdefault(job_id, Job(job_id))

    def _assign(self, job: Job, user: str) -> None:
        """Assign the job's id to a user; submissions of others under it are rejected."""
        job.user, job.submission = user, self._submissions.get((user, job.job_id))

    def _apply(self, job: Job, outcome: JobOutcome) -> None:
        job.state = outcome.STATE
        if job.is_over:
            job.nodes.clear()
        owed_micros = outcome.owed_micros
        if owed_micros is not None and (isinstance(outcome, JobAdmitted) or job.payment_micros is not None):
            job.payment_micros = owed_micros
        match outcome:
            case JobAdmitted():
                self._assign(job, outcome.user)
                job.reason = ""
            case JobRejected():
                self._assign(job, outcome.user)
                job.reason = outcome.reason
            case JobRefunded():
                job.reason = outcome.reason
            case JobCompleted():
                job.completed = outcome
                job.samples_done, job.loss = outcome.samples_done, outcome.loss

    def _report(self, job: Job, report: RunReport) -> None:
        if isinstance(report, RunStarted):
            job.present_run = report.run_id
        is_present = job.present_run in (None, report.run_id)
        if is_present:
            job.samples_done = report.samples_done
        run = self.runs.setdefault(
            (job.job_id, report.node, report.run_id), ReportedRun(report.samples_done, report.samples_done)
        )
        run.samples_done, run.time_s = report.samples_done, self._time_s
        if isinstance(report, RunStarted) and not job.is_over:
            job.nodes.add(report.node)
        elif report.ends_run:
            job.nodes.discard(report.node)
        match report:
            case RunStarted():
                run.first_samples = report.samples_done
            case RunProgressed() if is_present:
                job.first_loss = report.loss if job.first_loss is None else job.first_loss
                job.loss = report.loss
            case RunFinished():
                job.loss, end = report.loss, job.completed
                if end is None or (
                    end.samples_done == report.samples_done and end.node in (None, report.node)
                ):
                    job.finish_run = report.run_id
