"""Commands to the runner of mixture-of-experts models.

A job's set of ranks is a generation: each time that the job starts anew or its ranks change, its generation
is one higher. A run is a job in one generation, so every node reports the same `run_id`.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from schemas.base import Identifier, Record, RunId, Samples, TaggedUnion
from schemas.commands import Command
from schemas.experts.workload import (
    MAX_EXPERTS,
    MAX_MOE_LAYERS,
    MAX_PER_DEVICE,
    MAX_RANKS,
    MoeServeWorkload,
    MoeTrainWorkload,
    Ranks,
)

RanksReleaseReason = Literal["withdrawn", "failed", "node_lost", "preempted", "ended"]

if TYPE_CHECKING:
    MoeWorkload: TypeAlias = MoeTrainWorkload | MoeServeWorkload
else:
    MoeWorkload = Annotated[
        MoeTrainWorkload | MoeServeWorkload, TaggedUnion((MoeTrainWorkload, MoeServeWorkload))
    ]

ExpertNumber = Annotated[int, Field(ge=0, le=MAX_EXPERTS - 1)]


class RankMember(Record):
    """The ranks of a job on one node."""

    node: Identifier
    ranks: Ranks


class LayerPlacement(Record):
    """Where the experts of one MoE layer are."""

    layer: Annotated[int, Field(ge=0, le=MAX_MOE_LAYERS - 1)]
    """Counted among the MoE layers."""
    devices: Annotated[
        tuple[Annotated[tuple[ExpertNumber, ...], Field(max_length=MAX_PER_DEVICE)], ...],
        Field(min_length=1, max_length=MAX_RANKS),
    ]
    """The experts of each rank's device, in the order of the ranks."""


class RanksAssigned(Command):
    """The node runs its ranks of this job from now on. Each of the members gets the same command."""

    TYPE: ClassVar = "millrace.ranks.assigned.v1"
    RUNNER: ClassVar = "moe"

    run_id: RunId
    job_id: Identifier
    user: Identifier
    generation: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[RankMember, ...], Field(min_length=1, max_length=MAX_RANKS)]
    """In the order of the ranks; the first leads, and reports for all."""
    resume_samples: Samples
    """Samples that the cell knows to be done: a checkpoint is at least this far. With 0 it starts anew,
    whatever lies there."""
    report_interval_s: Annotated[float, Field(gt=0, le=86_400)]
    """Routing is reported so often."""
    revision: Annotated[int, Field(ge=0)] = 0
    """Revision of `placement`."""
    placement: Annotated[tuple[LayerPlacement, ...], Field(max_length=MAX_MOE_LAYERS)] = ()
    """Placement of layers that is known from a generation before; others begin with an expert per device."""
    workload: MoeWorkload


class ExpertsPlaced(Command):
    """The experts of these layers stand so from the next batch on. Each of the members gets the same command.

    Layers that are not named stay as they are. Between batches: what a batch needs for itself is decided by
    the job.
    """

    TYPE: ClassVar = "millrace.experts.placed.v1"
    RUNNER: ClassVar = "moe"

    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """For another one it is nothing."""
    revision: Annotated[int, Field(ge=1)]
    """Higher than that of every placement before in this generation: an older one changes nothing."""
    # Left out where it is the default, so that commands written before it was added keep their bytes.
    run_id: Annotated[RunId | None, Field(exclude_if=lambda run_id: run_id is None)] = None
    """The run that the experts are of. A node that does not have it reports this (`unknown_run`)."""
    layers: Annotated[tuple[LayerPlacement, ...], Field(min_length=1, max_length=MAX_MOE_LAYERS)]


class RanksReleased(Command):
    """The node has no rank of the job any more: they end at a step or batch boundary, a job that trains is
    checkpointed unless it is over, and the node reports the end of its run.
    """

    TYPE: ClassVar = "millrace.ranks.released.v1"
    RUNNER: ClassVar = "moe"
    CANCELS: ClassVar = True

    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """The one that ends here; an older one is over already."""
    # Left out where it is the default, so that commands written before it was added keep their bytes.
    run_id: Annotated[RunId | None, Field(exclude_if=lambda run_id: run_id is None)] = None
    """The run that ends here. A node that does not have it reports this (`unknown_run`)."""
    reason: RanksReleaseReason
    """`withdrawn`, `failed`: nothing is kept. `node_lost`: another of its nodes was lost, and it starts anew
    from its last checkpoint. `preempted`: it is checkpointed, and will start anew. `ended`: a service has
    reached its time."""
