"""What came of every job of a log, and of the whole: one side of a comparison."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from infra.views.summary import Summary, Tally
from schemas.base import Event
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.fleet import RunFinished
from schemas.jobs import JobSubmitted
from streams.cell.cell import LedgerEvent
from streams.policies.auction.job import slot_of_run


@dataclass(frozen=True)
class JobOutcome:
    """Where a job stands at the end of a log."""

    state: Literal["undecided", "admitted", "rejected", "withdrawn", "refunded", "completed"] = "undecided"
    """`undecided`: its bid waits for a solver; `admitted`: it is not over."""
    reason: str | None = None
    """Of a rejection or a refund."""
    payment_micros: int = 0
    """What its user pays, less what was given back."""
    finish_slot: int | None = None
    """The slot in which its work was done."""


@dataclass
class Outcomes:
    """Folds the events of one cell and what was decided because of each."""

    bids: dict[str, JobSubmitted] = field(default_factory=dict)
    """By job, as first made."""
    jobs: dict[str, JobOutcome] = field(default_factory=dict)
    """In the order of their bids."""
    events: int = 0
    _tally: Tally = field(default_factory=Tally)

    def take(self, entry: LedgerEvent, decisions: list[Decision]) -> None:
        """Take the next event."""
        event = entry.envelope.event
        self.events += 1
        self._tally.take_event(event)
        if isinstance(event, JobSubmitted) and event.job_id not in self.bids:
            self.bids[event.job_id] = event
            self.jobs[event.job_id] = JobOutcome()
        for decision in decisions:
            self._tally.take_decision(decision)
            self._decided(event, decision)

    @property
    def summary(self) -> Summary:
        """The figures of the whole log."""
        return self._tally.summary()

    def totals(self) -> dict[str, Any]:
        """The summary as plain values, with a number in place of all its adapters."""
        summary = self.summary
        figures = asdict(replace(summary, adapters=()))
        del figures["adapters"]
        return {"events": self.events, **figures, "completed": len(summary.adapters)}

    def _decided(self, event: Event, decision: Decision) -> None:
        match outcome := decision.outcome:
            case JobAdmitted():
                self.jobs[outcome.job_id] = JobOutcome("admitted", payment_micros=outcome.payment_micros)
            case JobRejected() if outcome.reason != "duplicate_job":
                # Else the job under this id is another one, and stands as it did.
                self.jobs[outcome.job_id] = JobOutcome("rejected", outcome.reason)
            case JobRefunded():
                self._end(outcome.job_id, "refunded", outcome.reason, outcome.refund_micros)
            case JobWithdrawn():
                self._end(outcome.job_id, "withdrawn", None, outcome.returned_micros)
            case JobCompleted():
                assert isinstance(event, RunFinished)
                job, slot = self.jobs[outcome.job_id], slot_of_run(event.run_id, event.job_id)
                self.jobs[outcome.job_id] = replace(job, state="completed", finish_slot=slot)

    def _end(
        self, job_id: str, state: Literal["refunded", "withdrawn"], reason: str | None, back_micros: int
    ) -> None:
        paid_micros = self.jobs[job_id].payment_micros - back_micros
        self.jobs[job_id] = JobOutcome(state, reason, paid_micros)
