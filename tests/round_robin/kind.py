"""The round-robin policy's types, and its manifest for the pipeline."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Identifier
from schemas.kind import Evidence, PolicyKind, PolicySettings, Problem, Solution, Solve, Terms, Workload
from tests.support.counting_commands import CountCancelled, CountOrdered


class RoundRobinPolicy(PolicySettings):
    """Jobs take turns: each counts `turn_samples` further, then the next job gets the node."""

    kind: Literal["round_robin"] = "round_robin"
    turn_samples: Annotated[int, Field(ge=1)] = 10
    sort_every_s: Annotated[float, Field(gt=0)] = 60.0
    """Interval at which a solver is asked to order the queue."""


class CountWorkload(Workload):
    """Counting to a number."""

    kind: Literal["count"] = "count"
    goal: Annotated[int, Field(ge=1, le=10**6)]

    @property
    def total_samples(self) -> int:
        return self.goal


class QueueTerms(Terms):
    """No bid and no deadline."""

    kind: Literal["queue"] = "queue"


class QueuePlace(Evidence):
    """Where a job has joined the queue."""

    kind: Literal["queue_place"] = "queue_place"
    ahead: int
    """Number of jobs before it."""


class SortProblem(Problem):
    """Problem of the best order of the queue."""

    kind: Literal["sort"] = "sort"
    left_samples: dict[Identifier, int]
    """By job."""

    @property
    def counts(self) -> dict[str, int]:
        return {"jobs": len(self.left_samples)}


class SortSolution(Solution):
    """An order of the queue."""

    kind: Literal["sort"] = "sort"
    job_ids: tuple[Identifier, ...]


ROUND_ROBIN = PolicyKind(
    settings=RoundRobinPolicy,
    zone="tests.round_robin.zone:RoundRobinZone",
    workloads=(CountWorkload,),
    terms=(QueueTerms,),
    evidence=(QueuePlace,),
    outcomes=(CountOrdered, CountCancelled),
    reasons={"job.admitted": ("queued",)},
    solves=(
        Solve(
            problem=SortProblem,
            solution=SortSolution,
            function="tests.round_robin.solve:shortest_first",
            smallest="tests.round_robin.solve:smallest",
        ),
    ),
    tools="tests.round_robin.tools:TOOLS",
)
