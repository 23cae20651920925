"""Commands to the runner of data-parallel jobs.

A job's set of workers is a generation: each time that workers join or leave, or that the job starts anew, its
generation is one higher. A run is a job in one generation, so every node reports the same `run_id`.
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
    """The node runs its part of these workers from now on. Each of the members gets the same command.

    A node with workers of the generation before lets them finish their step and goes on with this one; a node
    without starts its workers, which get the job's state from the others, or from its checkpoint where the
    job starts anew.
    """

    TYPE: ClassVar = "millrace.workers.assigned.v1"
    RUNNER: ClassVar = "elastic"

    run_id: RunId
    job_id: Identifier
    user: Identifier
    generation: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_WORKERS)]
    """In the order of the ranks. Nodes that had workers of the generation before come first: the first of all
    leads."""
    resumes: bool
    """Whether the job starts anew, from its checkpoint if it has one, rather than being scaled."""
    resume_samples: Samples
    """Samples that the cell knows to be done: where the job starts anew, a checkpoint is at least this
    far."""
    expected_samples_per_s: float
    """Speed that the cell expects of these workers together, by the job's profile."""
    workload: ElasticWorkload


class WorkersReleased(Command):
    """The node has no workers of the job any more: they finish their step, the job's state is kept as the
    reason demands, and the node reports the end of the run that they were in.
    """

    TYPE: ClassVar = "millrace.workers.released.v1"
    RUNNER: ClassVar = "elastic"
    CANCELS: ClassVar = True

    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """The one that ends here; an older one is over already."""
    # Left out where it is the default, so that commands written before it was added keep their bytes.
    run_id: Annotated[RunId | None, Field(exclude_if=lambda run_id: run_id is None)] = None
    """The run that ends here. A node that does not have it reports this (`unknown_run`)."""
    reason: ReleaseReason
    """`scaled_in`: others go on with the job. `preempted`: all of its workers stop, checkpointed if it keeps
    checkpoints, and it will start anew. `withdrawn`, `failed`: it is over, and nothing is kept. `node_lost`:
    another of its nodes was lost; it will start anew from its last checkpoint."""
    by_s: Annotated[float, Field(ge=0)] | None = None
    """When the workers must be gone, whatever they are doing; None where nobody waits for their node."""
