"""Timelines of a cell's jobs, folded from its log."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.codec import Decision, Envelope
from schemas.decisions import (
    EventWithoutEffect,
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
class ReportedRun:
    """State of a run by its reports."""

    number: int
    """Number of the run among those of all jobs, by first reports."""
    first_samples: int
    """Samples of the job when the run began."""
    samples_done: int
    time_s: float
    """Time of the latest report."""


@dataclass(eq=False)
class JobTimeline:
    """One job from its submission on. Times are Unix seconds.

    Figures of zones add fields of their own in subclasses (`ZoneFigures.JOB`).
    """

    job_id: str
    user: str = ""
    submission: JobSubmitted | None = None
    """None where the log was not read from its submission on."""
    event_id: str = ""
    """Id of the event of its submission."""
    submitted_s: float = 0.0
    state: JobStateName = "waiting"
    reason: str = ""
    """Reason of a rejection or a refund."""
    payment_micros: int | None = None
    """Payment of its user, less refunds. None where the job was not admitted."""
    started_s: float | None = None
    """Time at which it first had GPUs, if its zone's figures have it."""
    finished_s: float | None = None
    """Time of the latest report that its work is done."""
    over_s: float | None = None
    """Time of the decision that ended it."""
    queuing_s: float = 0.0
    """Time without GPUs from its admission on, before the present wait."""
    waits_since_s: float | None = None
    """Start of the present wait; None while it has GPUs, and when it is over."""
    nodes: set[str] = field(default_factory=set)
    """Nodes on which it runs now."""
    runs: dict[tuple[str, str], ReportedRun] = field(default_factory=dict)
    """Runs by node and the run's id."""
    samples_done: int = 0
    present_run: str | None = None
    """Run that has started last: later reports of other runs do not change the progress."""
    first_loss: float | None = None
    """First reported loss; None without reports before the end of a run."""
    loss: float | None = None
    finish_run: str | None = None
    """Run in which its work was done."""
    completed: JobCompleted | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self.state not in ("waiting", "admitted")

    @property
    def zone(self) -> str:
        """Zone to which it was submitted; empty if unknown."""
        return "" if self.submission is None else self.submission.zone

    @property
    def offered_micros(self) -> int | None:
        """The most that its user would pay, if the terms have it."""
        return None if self.submission is None else self.submission.terms.offered_micros

    @property
    def ended_s(self) -> float | None:
        """Time at which its work was done, or at which it was rejected, refunded or withdrawn."""
        return self.over_s if self.finished_s is None else self.finished_s

    @property
    def jct_s(self) -> float | None:
        """Job completion time: from submission to end (s)."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s

    def waited_s(self, time_s: float) -> float:
        """Return its whole time without GPUs until `time_s`."""
        return self.queuing_s + (0.0 if self.waits_since_s is None else time_s - self.waits_since_s)

    def counts(self) -> Counter[str]:
        """Return what its zone sums up over all jobs, by name."""
        return Counter()

    def run(self, time_s: float) -> None:
        """End its wait: it has GPUs, or is over."""
        self.queuing_s, self.waits_since_s = self.waited_s(time_s), None

    def wait(self, time_s: float) -> None:
        """Begin a wait, unless it waits."""
        if self.waits_since_s is None:
            self.waits_since_s = time_s


@dataclass
class _Asked:
    """A submission without a verdict."""

    event: JobSubmitted
    time_s: float
    before: JobTimeline | None
    """Rejected job under the same id."""
    repeats: int = 0
    """Number of its duplicates that are not answered yet."""


@dataclass
class Jobs:
    """Folds events and decisions. A decision is folded after its event, and later events may precede it."""

    kept: int | None = None
    """Number of the latest jobs that are over and are kept; None keeps all."""
    by_id: dict[str, JobTimeline] = field(default_factory=dict)
    """Jobs that are not over, and those that are kept, in the order of submission."""
    types: dict[str, type[JobTimeline]] = field(default_factory=dict)
    """Types of the jobs of each zone, if not the general one."""
    submitted: int = 0
    """Number of submissions, repeated ones included."""
    admitted: int = 0
    """Number of jobs that were admitted."""
    begun: Counter[str] = field(default_factory=Counter)
    """Number of submissions by zone, without those that are repeated or under the id of another job."""
    left: dict[str, Counter[str]] = field(default_factory=dict)
    """Sums of the counts of jobs that are not kept any more, by zone."""
    rejections: Counter[str] = field(default_factory=Counter)
    """Number of rejections by reason, those of repeated submissions included."""
    revenue_micros: int = 0
    """Payments less refunds."""
    _asked: dict[str, _Asked] = field(default_factory=dict)
    """Submissions without a verdict, by event id."""
    _over: deque[JobTimeline] = field(default_factory=deque)
    """Jobs in the order in which they ended."""
    _runs: int = 0
    _ended: Counter[tuple[str, JobStateName]] = field(default_factory=Counter)
    """Number of jobs that are over, by zone and state."""

    def live(self) -> Iterator[JobTimeline]:
        """Yield the jobs that are not over."""
        return (job for job in self.by_id.values() if not job.is_over)

    def ended(self, zone: str | None = None) -> Counter[JobStateName]:
        """Return the number of jobs that are over by state: those of a zone, or all."""
        counts = Counter[JobStateName]()
        for (own, state), count in self._ended.items():
            if zone in (None, own):
                counts[state] += count
        return counts

    def states(self) -> Counter[JobStateName]:
        """Return the number of jobs by state."""
        return self.ended() + Counter[JobStateName](job.state for job in self.live())

    def fold_event(self, time_s: float, envelope: Envelope) -> None:
        """Fold a ledger event of a time."""
        match event := envelope.event:
            case JobSubmitted():
                self._submit(time_s, envelope.id, event)
            case RunReport():
                # Any node may report a run of an unknown job.
                if (job := self.by_id.get(event.job_id)) is not None:
                    self._report(time_s, job, event)
            case NodeOnline() | NodeOffline() | NodeSilent():
                # No run goes on when a node leaves or comes back.
                for job in self.by_id.values():
                    job.nodes.discard(event.node)

    def fold_decision(self, time_s: float, decision: Decision) -> None:
        match outcome := decision.outcome:
            case JobOutcome(is_of_another_job=True):
                self.rejections[outcome.reason] += 1
                self._dismiss(decision.cause)
            case JobOutcome():
                self._apply(time_s, self._job_of(decision.cause, outcome), outcome)
            case EventWithoutEffect():
                is_dismissed = self._dismiss(decision.cause)
                self.submitted -= is_dismissed and outcome.reason == "duplicate_event"

    def leave(self) -> Iterator[JobTimeline]:
        """Remove and yield the jobs that are over and are not kept any more."""
        while self.kept is not None and len(self._over) > self.kept:
            job = self._over.popleft()
            self.left.setdefault(job.zone, Counter()).update(job.counts())
            if self.by_id.get(job.job_id) is job:
                del self.by_id[job.job_id]
            yield job

    def _submit(self, time_s: float, event_id: str, event: JobSubmitted) -> None:
        asked = self._asked.get(event_id)
        if asked is not None:
            asked.repeats += 1
            return
        self.submitted += 1
        known = self.by_id.get(event.job_id)
        self._asked[event_id] = _Asked(event, time_s, known)
        if known is None or known.state == "rejected":
            self._begin(event_id)
            self.begun[event.zone] += 1

    def _begin(self, event_id: str) -> JobTimeline:
        """Begin the timeline of a submission; one under the same id must be over."""
        event, time_s = self._asked[event_id].event, self._asked[event_id].time_s
        job = self.types.get(event.zone, JobTimeline)(event.job_id, event.user, event, event_id, time_s)
        self.by_id[event.job_id] = job
        return job

    def _dismiss(self, event_id: str) -> bool:
        """Forget a submission that has changed nothing; return whether there was one, and no duplicate."""
        asked = self._asked.get(event_id)
        if asked is None:
            return False
        if asked.repeats:
            asked.repeats -= 1
            return False
        del self._asked[event_id]
        job = self.by_id.get(asked.event.job_id)
        if job is not None and job.event_id == event_id:
            del self.by_id[job.job_id]
            self.begun[job.zone] -= asked.before is not job
            if asked.before is not None:
                self.by_id[job.job_id] = asked.before
        return True

    def _job_of(self, cause: str, outcome: JobOutcome) -> JobTimeline:
        """Return the job of a decision. Where several users have asked under its id, it belongs to the
        one that the decision names."""
        known = self.by_id.get(outcome.job_id)
        is_verdict = isinstance(outcome, JobAdmitted | JobRejected)
        if known is not None and (not is_verdict or self._is_of(known, cause, outcome)):
            return known
        event_id = cause if cause in self._asked else self._asked_under(outcome)
        if event_id is not None:
            return self._begin(event_id)
        return self.by_id.setdefault(outcome.job_id, JobTimeline(outcome.job_id, outcome.user))

    def _is_of(self, job: JobTimeline, cause: str, verdict: JobOutcome) -> bool:
        is_named = cause == job.event_id or cause not in self._asked
        return is_named and not job.is_over and job.user == verdict.user

    def _asked_under(self, verdict: JobOutcome) -> str | None:
        key = verdict.user, verdict.job_id
        asked = self._asked.items()
        return next((id for id, each in asked if (each.event.user, each.event.job_id) == key), None)

    def _apply(self, time_s: float, job: JobTimeline, outcome: JobOutcome) -> None:
        self._asked.pop(job.event_id, None)
        job.state, job.user = outcome.STATE, outcome.user
        if isinstance(outcome, JobAdmitted):
            self.admitted += 1
            job.wait(time_s)
        owed_micros = outcome.owed_micros
        if owed_micros is not None and (isinstance(outcome, JobAdmitted) or job.payment_micros is not None):
            self.revenue_micros += owed_micros - (job.payment_micros or 0)
            job.payment_micros = owed_micros
        match outcome:
            case JobRejected():
                self.rejections[outcome.reason] += 1
                job.reason = outcome.reason
            case JobRefunded():
                job.reason = outcome.reason
            case JobCompleted():
                job.completed = outcome
                job.samples_done, job.loss = outcome.samples_done, outcome.loss
        if job.is_over:
            job.over_s = time_s
            job.run(time_s)
            job.nodes.clear()
            self._ended[outcome.zone, job.state] += 1
            self._over.append(job)

    def _report(self, time_s: float, job: JobTimeline, report: RunReport) -> None:
        if isinstance(report, RunStarted):
            job.present_run = report.run_id
        is_present = job.present_run in (None, report.run_id)
        if is_present:
            job.samples_done = report.samples_done
        key = report.node, report.run_id
        if (run := job.runs.get(key)) is None:
            run = job.runs[key] = ReportedRun(self._runs, report.samples_done, report.samples_done, time_s)
            self._runs += 1
        run.samples_done, run.time_s = report.samples_done, time_s
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
                job.finished_s = time_s
                job.loss, end = report.loss, job.completed
                if end is None or (
                    end.samples_done == report.samples_done and end.node in (None, report.node)
                ):
                    job.finish_run = report.run_id
