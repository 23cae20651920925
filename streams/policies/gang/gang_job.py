"""A job of a zone whose jobs are sets of processes: its progress, failures and end."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from schemas.base import Outcome
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.facts import Facts, facts_bytes
from schemas.fleet import RunFailed, RunFinished
from schemas.kind import Evidence
from streams.cell.jobs import Job
from streams.policies.orders import MOST_FAILURES, OrderClock, facts_of_failure, retry_delay_s


@dataclass
class GangJob(ABC):
    """State of a job in its zone besides the register's part."""

    job: Job
    arrival: int
    """Rank by submission."""
    failures: int = 0
    """Failed runs since the job last exceeded its furthest progress."""
    furthest_samples: int = 0
    """Furthest progress, including what was lost."""
    finished: RunFinished | None = None
    """Report that its work is done; the job is over once no node has a process of it."""
    given_up: Facts | None = None
    """Facts of the failure that ends it; empty if its user withdraws it; None while it goes on."""
    last_seen_s: float = 0.0
    """Time of the last order or report of its present run (`OrderClock`)."""
    quiet_s: float = 0.0
    """Duration of expected silence from then on."""
    retry_s: float = 0.0
    """Time of its next run, by the same clock, after a node did not begin one."""

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def is_ending(self) -> bool:
        """Whether it has no further runs."""
        return self.finished is not None or self.given_up is not None

    @property
    def is_withdrawn(self) -> bool:
        """Whether it is ending because its user withdraws it."""
        return self.given_up is not None and not self.given_up

    @property
    def end_reason(self) -> Literal["finished", "withdrawn", "failed"] | None:
        """Reason that it is ending; None where it is not."""
        if self.finished is not None:
            return "finished"
        if self.given_up is None:
            return None
        return "failed" if self.given_up else "withdrawn"

    def release_reason(self, cause: str) -> Literal["withdrawn", "failed", "node_lost", "preempted"]:
        """Return the reason of an order to end its processes.

        Nodes discard its checkpoints for `withdrawn` and `failed`. So processes of a failed run, of a job
        that will resume, are released as `node_lost`: they wait for each other, and are killed.

        Args:
            cause: `Cause`, or another reason of the policy, which counts as a preemption.
        """
        if self.given_up is not None:
            return "failed" if self.given_up else "withdrawn"
        return "node_lost" if cause in ("node_lost", "run_failed") else "preempted"

    @property
    def remaining_samples(self) -> int:
        """Samples left of its work; 0 for a job that only time ends."""
        total_samples = self.job.workload.total_samples
        return 0 if total_samples is None else max(total_samples - self.job.samples_done, 0)

    @property
    def ending_bytes(self) -> int:
        """Most bytes of its end in a snapshot: the report or the facts."""
        finished = "" if self.finished is None else self.finished.model_dump_json()
        return len(finished.encode()) + facts_bytes(self.given_up or {})

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot."""

    def mark_seen(self, last_seen_s: float, quiet_s: float = 0.0) -> None:
        """Note an order or report of its present run, which may then be silent for `quiet_s`."""
        self.last_seen_s, self.quiet_s = last_seen_s, quiet_s

    def progress(self, samples_done: int) -> None:
        """Set its progress, at most all of its work."""
        total_samples = self.job.workload.total_samples
        if total_samples is not None:
            samples_done = min(samples_done, total_samples)
        if samples_done > self.furthest_samples:
            self.failures, self.furthest_samples = 0, samples_done
        self.job.samples_done = samples_done

    def fail(self, report: RunFailed, orders: OrderClock, backs_off: bool = False) -> Facts:
        """Count a failed run. The job is given up after a permanent failure, or after too many.

        Args:
            backs_off: whether it waits before its next run.

        Returns:
            the facts of the failure.
        """
        facts = facts_of_failure(report)
        self.failures += 1
        if report.permanent or self.failures >= MOST_FAILURES:
            self.given_up = facts
        if backs_off:
            self.retry_s = orders.elapsed_s + retry_delay_s(self.failures)
        return facts

    def withdraw(self) -> None:
        """Note that its user withdraws it."""
        self.given_up = {}

    def admitted(self, zone: str, evidence: Evidence) -> JobAdmitted:
        """Return the decision that it is queued, without a payment."""
        return JobAdmitted(
            job_id=self.job_id,
            user=self.job.user,
            zone=zone,
            reason="queued",
            payment_micros=0,
            evidence=evidence,
        )

    def rejected(self, zone: str, reason: str, facts: Facts) -> JobRejected:
        """Return the decision that it is rejected."""
        return JobRejected(job_id=self.job_id, user=self.job.user, zone=zone, reason=reason, facts=facts)

    def completed(self, zone: str, node: str, samples_done: int, **results: Any) -> JobCompleted:
        """Return the decision that its work is done.

        Args:
            results: further fields of the decision.
        """
        return JobCompleted(
            job_id=self.job_id,
            user=self.job.user,
            zone=zone,
            reason="work_done",
            node=node,
            payment_micros=0,
            samples_done=samples_done,
            **results,
        )

    def refunded(self, zone: str, reason: str, facts: Facts) -> JobRefunded:
        """Return the decision that it ends without its work."""
        return JobRefunded(
            job_id=self.job_id,
            user=self.job.user,
            zone=zone,
            reason=reason,
            facts=facts,
            remaining_samples=self.remaining_samples,
            refund_micros=0,
            retained_micros=0,
        )

    def ended(self, zone: str) -> Outcome:
        """Return the decision that it is over: completed, refunded after failures, or withdrawn."""
        if (run := self.finished) is not None:
            return self.completed(
                zone,
                run.node,
                run.samples_done,
                loss=run.loss,
                adapter_path=run.adapter_path,
                adapter_digest=run.adapter_digest,
            )
        if self.given_up:
            return self.refunded(zone, "run_failed", self.given_up)
        return JobWithdrawn(
            job_id=self.job_id,
            user=self.job.user,
            zone=zone,
            reason="user_request",
            returned_micros=0,
            retained_micros=0,
        )
