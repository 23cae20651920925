"""Commands to the runner of mixture-of-experts models.

A job's set of ranks is a generation: each time that the job starts again or its ranks change, its generation
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
    """Placement of the experts of one MoE layer."""

    layer: Annotated[int, Field(ge=0, le=MAX_MOE_LAYERS - 1)]
    """Index among the MoE layers."""
    devices: Annotated[
        tuple[Annotated[tuple[ExpertNumber, ...], Field(max_length=MAX_PER_DEVICE)], ...],
        Field(min_length=1, max_length=MAX_RANKS),
    ]
    """Experts on each rank's device, in the order of the ranks."""


class RanksAssigned(Command):
    """The node runs its ranks of this job from now on. All members get the same command."""

    TYPE: ClassVar = "millrace.ranks.assigned.v1"
    RUNNER: ClassVar = "moe"

    run_id: RunId
    job_id: Identifier
    user: Identifier
    generation: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[RankMember, ...], Field(min_length=1, max_length=MAX_RANKS)]
    """Members in the order of the ranks; the first is the leader and reports for all."""
    resume_samples: Samples
    """Number of samples done, as reported: a checkpoint is at least this far. With 0 the job starts from the
    beginning and ignores checkpoints."""
    report_interval_s: Annotated[float, Field(gt=0, le=86_400)]
    """Interval between reports of routing."""
    revision: Annotated[int, Field(ge=0)] = 0
    """Revision of `placement`."""
    placement: Annotated[tuple[LayerPlacement, ...], Field(max_length=MAX_MOE_LAYERS)] = ()
    """Placement of layers from an earlier generation; others begin with an expert per device."""
    workload: MoeWorkload


class ExpertsPlaced(Command):
    """The experts of these layers have this placement from the next batch on. All members get the same
    command.

    Other layers keep their placement. This is the placement between batches: the job itself decides on that
    for a single batch.
    """

    TYPE: ClassVar = "millrace.experts.placed.v1"
    RUNNER: ClassVar = "moe"

    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """Generation to which it applies; it is ignored in any other."""
    revision: Annotated[int, Field(ge=1)]
    """Revision, higher than that of every earlier placement of the generation: an older one changes
    nothing."""
    # Omitted if it is the default, so that commands written before it was added keep their bytes.
    run_id: Annotated[RunId | None, Field(exclude_if=lambda run_id: run_id is None)] = None
    """Run of the experts. A node without it reports `unknown_run`."""
    layers: Annotated[tuple[LayerPlacement, ...], Field(min_length=1, max_length=MAX_MOE_LAYERS)]


class RanksReleased(Command):
    """The node ends its ranks of the job at a step or batch boundary. A job that trains is checkpointed
    unless it is over, and the node reports the end of its run.
    """

    TYPE: ClassVar = "millrace.ranks.released.v1"
    RUNNER: ClassVar = "moe"
    CANCELS: ClassVar = True

    job_id: Identifier
    generation: Annotated[int, Field(ge=1)]
    """Generation that ends here; older ones are already over."""
    # Omitted if it is the default, so that commands written before it was added keep their bytes.
    run_id: Annotated[RunId | None, Field(exclude_if=lambda run_id: run_id is None)] = None
    """Run that ends here. A node without it reports `unknown_run`."""
    reason: RanksReleaseReason
    """Reason. `withdrawn`, `failed`: its files are deleted. `node_lost`: another of its nodes is down, and it
    starts again from its last checkpoint. `preempted`: it is checkpointed, and will start again. `ended`: a
    service has reached its time."""
