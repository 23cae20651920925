"""View of the round-robin policy."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from infra.views.jobs import Job
from infra.views.policy import PolicyFigures, PolicyView
from schemas.base import Event, Outcome, Record
from schemas.codec import Decision
from schemas.solves import Question, SolveFinished, SolveRequested
from tests.round_robin.kind import QueuePlace, SortSolution
from tests.support.counting_commands import CountOrdered


class RoundRobinFigures(PolicyFigures):
    """Turns, in all and of each job."""

    NAME = "round_robin"

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    def take_decision(self, decision: Decision) -> None:
        if isinstance(decision.outcome, CountOrdered):
            self._turns[decision.outcome.job_id] += 1

    def headline(self) -> str:
        return f"{self._turns.total()} turns" if self._turns else ""

    def rows(self) -> Iterator[tuple[str, str]]:
        if self._turns:
            yield "turns", str(self._turns.total())

    def as_json(self) -> dict[str, Any]:
        return {"turns": self._turns.total()} if self._turns else {}

    def job_cells(self, job: Job) -> dict[str, str]:
        return {"turns": str(self._turns[job.job_id])} if job.job_id in self._turns else {}


class RoundRobinView(PolicyView):
    """See `PolicyView`."""

    figures = RoundRobinFigures

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:
        match record:
            case SolveFinished(solution=SortSolution(job_ids=job_ids)) if job_id in job_ids:
                return record
        return None

    def words(self, told: Record) -> list[str] | None:
        match told:
            case QueuePlace():
                return [f"{told.ahead} jobs are before it"]
            case CountOrdered():
                return [f"a turn on {told.node}, from {told.start} to {told.goal}"]
            case SolveRequested(question=Question(kind="sort")):
                return ["a solver is asked for the order of the queue"]
        return None

    def happening(self, outcome: Outcome) -> str | None:
        if isinstance(outcome, CountOrdered):
            return f"{outcome.job_id} has a turn on {outcome.node}, from {outcome.start} to {outcome.goal}"
        return None
