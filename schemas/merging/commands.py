"""Commands to the runner of fine-tuning tasks, which keeps the base model loaded from one task to the next.

A task is one job, or two that are merged. Each time that its GPUs or its jobs change it is a new generation.
A run is a job in one task of one generation; all nodes of the task report it under the same `run_id`.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Identifier, Record, RunId, UnixTime
from schemas.commands import Command
from schemas.fleet import RefusedRun
from schemas.merging.workload import MAX_GPUS, Gpus, Iterations, TuningWorkload

TransferMode = Literal["normal", "temporal", "spatial"]
"""`normal`: one job, from the base model. `temporal`: the first job to its end, then the second from the
weights that the first has left (A -> B). `spatial`: both in one run, into one adapter (A || B)."""

TaskReleaseReason = Literal[
    "profiled", "reallocated", "preempted", "merged", "undone", "withdrawn", "failed", "node_lost"
]

JOBS_PER_MODE: dict[TransferMode, int] = {"normal": 1, "temporal": 2, "spatial": 2}


class TaskMember(Record):
    """The GPUs of a task on one node."""

    node: Identifier
    gpus: Gpus


class JobOrder(Record):
    """One job of a task."""

    run_id: RunId
    """Its id in reports."""
    job_id: Identifier
    user: Identifier
    """Owner of the job: adapters of each user lie apart."""
    workload: TuningWorkload
    resume_iterations: Iterations
    """Iterations that the cell knows to be done: a checkpoint of this job at least this far is expected. With
    0 it starts anew, whatever lies there."""
    oldest_generation: Annotated[int, Field(ge=1)] = 1
    """Checkpoints of generations before this one are of a merge that was undone: no run goes on from them."""


class ProfileOrdered(Command):
    """Profile a new job on this node: some training steps from the base model, none of which is kept."""

    TYPE: ClassVar = "millrace.profile.ordered.v1"
    RUNNER: ClassVar = "tuner"

    order: JobOrder
    gpus: Gpus
    """One, or as many as a pipeline has stages."""
    iterations: Annotated[int, Field(ge=1, le=1_024)]
    """At most so many steps."""
    limit_s: Annotated[float, Field(gt=0, le=86_400)]
    """After so long the run is over with what it has; without a step by then it has failed."""
    fisher_samples: Annotated[int, Field(ge=1, le=65_536)]
    """Records that the embedding is computed on, at most."""


class TaskAssigned(Command):
    """The node runs its part of this task from now on; each of the members gets the same command.

    What the node has of an older generation of these jobs ends at a step boundary, checkpointed, and goes on
    as told here. Other tasks on the node stay.
    """

    TYPE: ClassVar = "millrace.task.assigned.v1"
    RUNNER: ClassVar = "tuner"

    task_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """Higher than that of every task before that had one of these jobs: checkpoints go by it."""
    mode: TransferMode
    orders: Annotated[tuple[JobOrder, ...], Field(min_length=1, max_length=2)]
    """Orders of the task's jobs, the donor of a temporal merge first."""
    members: Annotated[tuple[TaskMember, ...], Field(min_length=1, max_length=MAX_GPUS)]
    """In the order of the ranks; the first leads, and reports for all."""
    watched_epochs: Annotated[int, Field(ge=0, le=1_000)] = 2
    """In so many epochs of a merge each job is evaluated, the receiver of a temporal one with the weights of
    its donor, so that the cell can undo it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.orders) != JOBS_PER_MODE[self.mode]:
            raise ValueError(
                f"a task of mode {self.mode} has {JOBS_PER_MODE[self.mode]} jobs, not {len(self.orders)}"
            )
        return self


class TaskReleased(Command):
    """The node has no part of the task any more: it ends at a step boundary, its jobs are checkpointed unless
    they are over, and the node reports the end of its runs.
    """

    TYPE: ClassVar = "millrace.task.released.v1"
    RUNNER: ClassVar = "tuner"
    CANCELS: ClassVar = True

    task_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """The one that ends here; an older one is over already."""
    job_ids: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=2)]
    """Whom the reason is about; another job of the task is checkpointed."""
    reason: TaskReleaseReason
    """`withdrawn`, `failed`: nothing is kept of the jobs. `undone`: nothing of those that are not over; they
    had not begun before the merge, and begin anew. For all others the jobs are checkpointed."""
    # Left out where it is the default, so that commands written before it was added keep their bytes.
    runs: Annotated[tuple[RefusedRun, ...], Field(max_length=2, exclude_if=lambda runs: not runs)] = ()
    """Runs that end here. A node that has none of them reports `unknown_run`."""


class LoaderPrewarmed(Command):
    """Prepare the data loader of a job that is about to run here, while others still do (section 6.2)."""

    TYPE: ClassVar = "millrace.loader.prewarmed.v1"
    RUNNER: ClassVar = "tuner"

    order: JobOrder
    starts_s: UnixTime
    """When it is expected to run; the loader is given up if it has not by as long again."""
