"""The whole story of one job, from the log."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from schemas.auction.batches import BatchProblem, BatchSolution
from schemas.base import Event, Outcome
from schemas.codec import Decision, Envelope, InvalidRecordError
from schemas.commands import SlotAssigned
from schemas.decisions import JobAdmitted, JobOutcome, JobRejected, JobStateName
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.solves import SolveFinished, SolveRequested

_R = TypeVar("_R")

StoryState = Literal["unknown", "submitted"] | JobStateName


@dataclass(frozen=True)
class Chapter:
    """One event or decision about the job."""

    place: tuple[int, int]
    """Ledger offset, and the index among the decisions about it; the event itself comes before them."""
    time: str | float | None
    """An event's as its sender wrote it; a decision's by the cell's clock."""
    id: str
    record: Event | Outcome
    """Only the job's own part is kept of a slot's command, of a batch of bids for a solver, and of the
    solver's answer."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "time": self.time,
            "id": self.id,
            "type": self.record.TYPE,
            "data": self.record.model_dump(mode="json"),
        }


@dataclass
class Story:
    """Collects what a cell's log says about one job; events and decisions are each given in their order."""

    job_id: str
    state: StoryState = "unknown"
    _chapters: list[Chapter] = field(default_factory=list)

    @property
    def chapters(self) -> list[Chapter]:
        """All of it in the order of the ledger, each decision behind the event that brought it about."""
        return sorted(self._chapters, key=lambda chapter: chapter.place)

    @property
    def bid(self) -> JobSubmitted | None:
        """The bid as it was first made."""
        return self._first(JobSubmitted)

    @property
    def verdict(self) -> JobAdmitted | JobRejected | None:
        """What was decided about the bid."""
        return self._first(JobAdmitted) or self._first(JobRejected)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self.state in ("rejected", "withdrawn", "refunded", "completed")

    def take_event(self, offset: int, envelope: Envelope) -> None:
        """Take a ledger event, if it is about the job."""
        event = envelope.event
        about = JobSubmitted | JobWithdrawalRequested | RunStarted | RunProgressed | RunFinished | RunFailed
        if isinstance(event, about) and event.job_id == self.job_id:
            if isinstance(event, JobSubmitted) and self.state == "unknown":
                self.state = "submitted"
            self._chapters.append(Chapter((offset, -1), envelope.time, envelope.id, event))
        elif isinstance(event, SolveFinished) and isinstance(event.solution, BatchSolution):
            plans = tuple(plan for plan in event.solution.plans if plan.job_id == self.job_id)
            if plans:
                own = event.model_copy(
                    update={"solution": event.solution.model_copy(update={"plans": plans})}
                )
                self._chapters.append(Chapter((offset, -1), envelope.time, envelope.id, own))

    def take_decision(self, decision: Decision) -> None:
        """Take a decision, if it is about the job.

        Raises:
            InvalidRecordError: its id is none that a cell gives.
        """
        outcome = decision.outcome
        if isinstance(outcome, SlotAssigned):
            orders = tuple(order for order in outcome.runs if order.job_id == self.job_id)
            if not orders:
                return
            outcome = outcome.model_copy(update={"runs": orders})
        elif isinstance(outcome, SolveRequested) and isinstance(outcome.problem, BatchProblem):
            mine = tuple(bid for bid in outcome.problem.bids if bid.job_id == self.job_id)
            if not mine:
                return
            problem = outcome.problem.model_copy(update={"bids": mine, "classes": ()})
            outcome = outcome.model_copy(update={"problem": problem})
        elif getattr(outcome, "job_id", None) != self.job_id:
            return
        repeated = isinstance(outcome, JobRejected) and outcome.reason == "duplicate_job"
        if isinstance(outcome, JobOutcome) and not repeated:
            # Repeated, the job under this id is another one, and stands as it did.
            self.state = outcome.STATE
        self._chapters.append(Chapter(_place_of(decision), decision.time_s, decision.id, outcome))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "job_id": self.job_id,
            "state": self.state,
            "chapters": [chapter.as_json() for chapter in self.chapters],
        }

    def _first(self, kind: type[_R]) -> _R | None:
        return next((chapter.record for chapter in self.chapters if isinstance(chapter.record, kind)), None)


def _place_of(decision: Decision) -> tuple[int, int]:
    _, *numbers = decision.id.rsplit("-", 2)
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise InvalidRecordError(f"{decision.id} is no id of a decision")
    offset, index = map(int, numbers)
    return offset, index
