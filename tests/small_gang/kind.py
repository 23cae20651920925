"""The types of the policy, and its manifest."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, PositiveSamples, RunId, Samples
from schemas.commands import Command
from schemas.facts import Facts
from schemas.kind import Evidence, OrderTimeoutSeconds, PolicyKind, PolicySettings, Terms, Workload

Processes = Annotated[int, Field(ge=1, le=8)]
Reason = Literal["started", "resumed", "node_lost", "preempted", "run_failed", "withdrawn", "work_done"]


class LinePolicy(PolicySettings):
    """Jobs start in the order of their submission, each with all of its processes."""

    shares_base_model: ClassVar = False
    kind: Literal["small_gang"] = "small_gang"
    order_timeout_s: OrderTimeoutSeconds = 60.0


class QueuedLine(Evidence):
    """A job is queued."""

    kind: Literal["queued_line"] = "queued_line"
    jobs_waiting: Amount


class LineWorkload(Workload):
    """Fitting a line to points, by processes that each have a GPU."""

    kind: Literal["line"] = "line"
    processes: Processes = 1
    work_samples: PositiveSamples
    step_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Delay after each step, so that a short training takes some time."""

    @property
    def total_samples(self) -> int:
        return self.work_samples


class LineTerms(Terms):
    """No bid and no deadline."""

    kind: Literal["first_come"] = "first_come"


class LineChanged(Outcome):
    """A job has its processes, or none any more."""

    TYPE: ClassVar = "test.line.changed.v1"
    zone: Identifier
    job_id: Identifier
    generation: Amount
    reason: Reason
    facts: Facts


class LineAssigned(Command):
    """The node has ranks of a job, which resumes from its newest checkpoint."""

    TYPE: ClassVar = "test.line.assigned.v1"
    RUNNER: ClassVar = "line"
    run_id: RunId
    job_id: Identifier
    user: Identifier
    generation: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[tuple[Identifier, Processes], ...], Field(max_length=8)]
    """Nodes, each with its processes, in the order of the ranks."""
    resume_samples: Samples = 0
    workload: LineWorkload


class LineReleased(Command):
    """The node ends its ranks of a generation."""

    TYPE: ClassVar = "test.line.released.v1"
    RUNNER: ClassVar = "line"
    CANCELS: ClassVar = True
    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    reason: Literal["withdrawn", "failed", "node_lost", "preempted"]


SMALL_GANG = PolicyKind(
    settings=LinePolicy,
    zone="tests.small_gang.zone:SmallGangZone",
    workloads=(LineWorkload,),
    terms=(LineTerms,),
    evidence=(QueuedLine,),
    outcomes=(LineChanged, LineAssigned, LineReleased),
    reasons={
        "job.admitted": ("queued",),
        "job.rejected": ("larger_than_the_zone",),
        "event.ignored": ("job_ending",),
    },
)
