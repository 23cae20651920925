"""Commands to the runner of fine-tuning tasks, which keeps the base model loaded between tasks.

A task is one job, or two merged jobs. Each change of its GPUs or its jobs begins a new generation. A run is a
job in one task of one generation; all nodes of the task report it under the same `run_id`.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Identifier, Record, RunId, UnixTime
from schemas.commands import Command
from schemas.fleet import AdapterDigest, RefusedRun
from schemas.merging.workload import MAX_GPUS, Gpus, Iterations, TuningWorkload

TransferMode = Literal["normal", "temporal", "spatial"]
"""Mode of a task. `normal`: one job, from the base model. `temporal`: the first job to its end, then the
second from the weights of the first (A -> B). `spatial`: both in one run, into one adapter (A || B)."""

TaskReleaseReason = Literal[
    "profiled", "reallocated", "preempted", "merged", "undone", "withdrawn", "failed", "node_lost"
]

JOBS_PER_MODE: dict[TransferMode, int] = {"normal": 1, "temporal": 2, "spatial": 2}


class TaskMember(Record):
    """The GPUs of a task on one node."""

    node: Identifier
    gpus: Gpus


class AdapterSource(Record):
    """The adapter of a finished job, from which another job starts."""

    job_id: Identifier
    digest: AdapterDigest
    """Digest of the adapter: an id may be used again by another job."""


class JobOrder(Record):
    """One job of a task."""

    run_id: RunId
    """Id of the run in reports."""
    job_id: Identifier
    user: Identifier
    """Owner of the job: the adapters of each user have their own folder."""
    workload: TuningWorkload
    resume_iterations: Iterations
    """Iterations done, as reported: a checkpoint of this job at least this far is expected. With 0 the job
    starts from the beginning and ignores checkpoints."""
    oldest_generation: Annotated[int, Field(ge=1)] = 1
    """Oldest generation whose checkpoints are used: earlier ones are of a merge that was undone."""
    # Omitted without one, so that commands written before it was added keep their bytes.
    starts_from: Annotated[AdapterSource | None, Field(exclude_if=lambda source: source is None)] = None
    """The adapter whose weights the job starts from instead of new ones; None for a new adapter. Only in mode
    `normal`."""


class ProfileOrdered(Command):
    """Profile a new job on this node: some training steps from the base model, without keeping the
    weights."""

    TYPE: ClassVar = "millrace.profile.ordered.v1"
    RUNNER: ClassVar = "tuner"

    order: JobOrder
    gpus: Gpus
    """Number of GPUs: one, or the number of a pipeline's stages."""
    iterations: Annotated[int, Field(ge=1, le=1_024)]
    """Most steps of the run."""
    limit_s: Annotated[float, Field(gt=0, le=86_400)]
    """Time after which the run ends with its measurements; without a step by then it fails."""
    fisher_samples: Annotated[int, Field(ge=1, le=65_536)]
    """Most records for the embedding."""


class TaskAssigned(Command):
    """The node runs its part of this task from now on. All members get the same command.

    Runs of an older generation of these jobs on the node end at a step boundary with a checkpoint, and resume
    by this command. Other tasks on the node stay.
    """

    TYPE: ClassVar = "millrace.task.assigned.v1"
    RUNNER: ClassVar = "tuner"

    task_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """Generation, higher than that of every earlier task with one of these jobs; checkpoints bear it."""
    mode: TransferMode
    orders: Annotated[tuple[JobOrder, ...], Field(min_length=1, max_length=2)]
    """Orders of the task's jobs, the donor of a temporal merge first."""
    members: Annotated[tuple[TaskMember, ...], Field(min_length=1, max_length=MAX_GPUS)]
    """Members in the order of the ranks; the first is the leader and reports for all."""
    watched_epochs: Annotated[int, Field(ge=0, le=1_000)] = 2
    """Number of epochs of a merge in which each job is evaluated, so that the cell can undo the merge. The
    receiver of a temporal merge is evaluated with the weights of its donor."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.orders) != JOBS_PER_MODE[self.mode]:
            raise ValueError(
                f"a task of mode {self.mode} has {JOBS_PER_MODE[self.mode]} jobs, not {len(self.orders)}"
            )
        return self


class TaskReleased(Command):
    """The node ends its part of the task: at a step boundary its jobs are checkpointed unless they are over,
    and the node reports the end of its runs.
    """

    TYPE: ClassVar = "millrace.task.released.v1"
    RUNNER: ClassVar = "tuner"
    CANCELS: ClassVar = True

    task_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """Generation that ends here; older ones are already over."""
    job_ids: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=2)]
    """Jobs that the reason is about; another job of the task is checkpointed."""
    reason: TaskReleaseReason
    """Reason. `withdrawn`, `failed`: the files of the jobs are deleted. `undone`: files of unfinished jobs
    are deleted, because their state includes the merge. Otherwise the jobs are checkpointed."""
    # Omitted if it is the default, so that commands written before it was added keep their bytes.
    runs: Annotated[tuple[RefusedRun, ...], Field(max_length=2, exclude_if=lambda runs: not runs)] = ()
    """Runs that end here. A node without any of them reports `unknown_run`."""


class LoaderPrewarmed(Command):
    """Prepare the data loader of a job that is about to run here, during the runs of others (section 6.2)."""

    TYPE: ClassVar = "millrace.loader.prewarmed.v1"
    RUNNER: ClassVar = "tuner"

    order: JobOrder
    starts_s: UnixTime
    """Expected start of the job. The loader is discarded if the job has not started by twice the time from
    now to `starts_s`."""
