"""Commands to the runner of data-parallel jobs.

A job's set of workers is a generation: each time that workers join or leave, or that the job starts again,
its generation is one higher. A run is a job in one generation, so every node reports the same `run_id`.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Identifier, Record, RunId, Samples
from schemas.commands import Command
from schemas.elastic.workload import MAX_WORKERS, ElasticWorkload, Workers

ReleaseReason = Literal["scaled_in", "preempted", "withdrawn", "failed", "node_lost"]


class Member(Record):
    """The workers of a job on one node."""

    node: Identifier
    workers: Workers


class WorkersAssigned(Command):
    """The node runs its part of these workers from now on. All members get the same command.

    A node with workers of the previous generation lets them finish their step and continues with this one. A
    node without workers starts them; they get the job's state from the others, or from its checkpoint if the
    job starts again.
    """

    TYPE: ClassVar = "millrace.workers.assigned.v1"
    RUNNER: ClassVar = "elastic"

    run_id: RunId
    job_id: Identifier
    user: Identifier
    generation: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_WORKERS)]
    """Members in the order of the ranks. Nodes with workers of the previous generation come first; the first
    member is the leader."""
    resumes: bool
    """Whether the job starts again, from its checkpoint if it has one, instead of being scaled."""
    resume_samples: Samples
    """Number of samples done, as reported: if the job starts again, a checkpoint is at least this far."""
    expected_samples_per_s: float
    """Expected speed of these workers together, by the job's profile."""
    workload: ElasticWorkload


class WorkersReleased(Command):
    """The node ends its workers of the job: they finish their step, the job's state is kept depending on the
    reason, and the node reports the end of their run.
    """

    TYPE: ClassVar = "millrace.workers.released.v1"
    RUNNER: ClassVar = "elastic"
    CANCELS: ClassVar = True

    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """Generation that ends here; older ones are already over."""
    # Omitted if it is the default, so that commands written before it was added keep their bytes.
    run_id: Annotated[RunId | None, Field(exclude_if=lambda run_id: run_id is None)] = None
    """Run that ends here. A node without it reports `unknown_run`."""
    reason: ReleaseReason
    """Reason. `scaled_in`: other workers continue the job. `preempted`: all of its workers end, with a
    checkpoint if it keeps checkpoints, and it will start again. `withdrawn`, `failed`: it is over, and its
    files are deleted. `node_lost`: another of its nodes is down; it will start again from its last
    checkpoint."""
    by_s: Annotated[float, Field(ge=0)] | None = None
    """Time by which the workers must have ended in any state; None without a deadline."""
