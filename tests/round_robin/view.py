"""View of the round-robin policy."""

from collections.abc import Iterator

from infra.views.policy import FiguresView, PolicyView
from schemas.base import Event, Outcome, Record
from schemas.solves import Question, SolveFinished, SolveRequested
from tests.round_robin.figures import CountingJob, RoundRobinFigures
from tests.round_robin.kind import QueuePlace, SortSolution
from tests.support.counting_commands import CountOrdered


class RoundRobinFiguresView(FiguresView[RoundRobinFigures, CountingJob]):
    """See `FiguresView`."""

    def headline(self, figures: RoundRobinFigures) -> str:
        return f"{figures.turns} turns" if figures.turns else ""

    def rows(self, figures: RoundRobinFigures) -> Iterator[tuple[str, str]]:
        yield "turns", str(figures.turns)
        yield "longest wait for a turn", f"{figures.longest_wait_s:.0f} s"

    def job_cells(self, figures: RoundRobinFigures, job: CountingJob) -> dict[str, str]:
        return {"turns": str(job.turns)} if job.turns else {}


class RoundRobinView(PolicyView):
    """See `PolicyView`."""

    figures = RoundRobinFiguresView()

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:
        match record:
            case SolveFinished(solution=SortSolution(job_ids=job_ids)) if job_id in job_ids:
                return record
        return None

    def words(self, record: Record) -> list[str] | None:
        match record:
            case QueuePlace():
                return [f"{record.ahead} jobs are before it"]
            case CountOrdered():
                return [f"a turn on {record.node}, from {record.start} to {record.goal}"]
            case SolveRequested(question=Question(kind="sort")):
                return ["a solver is asked for the order of the queue"]
        return None

    def happening(self, outcome: Outcome) -> str | None:
        if isinstance(outcome, CountOrdered):
            return f"{outcome.job_id} has a turn on {outcome.node}, from {outcome.start} to {outcome.goal}"
        return None
