"""Events of the `fleet` topic: what the executors saw."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Event, Identifier, PositiveSamples, RelativePath, Samples, Slot, Text

Loss = Annotated[float, Field(ge=0, le=1e9)]
NodeSeconds = Annotated[float, Field(ge=0, le=1e9)]
"""The time of the steps that a run took part in. Of a step that runs share, each has had an equal part, or a
part by its tokens where that is less: no more than it would have taken alone."""


class FleetEvent(Event):
    """What a node reports, or what is said of it."""

    node: Identifier


class NodeOnline(FleetEvent):
    """An executor serves this node from now on."""

    TYPE: ClassVar = "millrace.node.online.v1"

    base_model: Identifier


class NodeHeartbeat(FleetEvent):
    """The node is still there. Intake notes it and keeps it out of the ledger: see `NodeHeard`,
    `NodeSilent`."""

    TYPE: ClassVar = "millrace.node.heartbeat.v1"


class NodeOffline(FleetEvent):
    """An executor leaves in good order: its runs are checkpointed."""

    TYPE: ClassVar = "millrace.node.offline.v1"

    reason: Text = ""
    """For an operator, such as a full disk, which takes no checkpoints either; empty where the executor was
    asked to stop."""


class NodeHeard(FleetEvent):
    """A node gives signs of life that the cell does not know of yet. Written by intake, to the ledger
    alone."""

    TYPE: ClassVar = "millrace.node.heard.v1"


class NodeSilent(FleetEvent):
    """A node gave no sign of life for longer than the cell waits. Written by intake, to the ledger alone."""

    TYPE: ClassVar = "millrace.node.silent.v1"

    silent_s: Annotated[float, Field(ge=0, le=1e9)]
    """For so long intake listened and did not hear the node; time in which it could not listen is left
    out."""


class RunReport(FleetEvent):
    """What a node reports of one of its runs."""

    slot: Slot
    job_id: Identifier
    samples_done: Samples


class RunStarted(RunReport):
    """A job trains on a node in a slot, from `samples_done` of its work on."""

    TYPE: ClassVar = "millrace.run.started.v1"

    dataset_samples: PositiveSamples | None = None
    """Records that the executor has counted in the job's file; None where it had no need to read it."""


class RunProgressed(RunReport):
    """How far a job is. With `slot_complete`, the run's part of this slot is over and checkpointed."""

    TYPE: ClassVar = "millrace.run.progressed.v1"

    loss: Loss
    node_s: NodeSeconds
    """What the run has had of the node in this slot."""
    slot_complete: bool


class RunFinished(RunReport):
    """A job's work is done and its adapter lies at `adapter_path`, below the executors' output root."""

    TYPE: ClassVar = "millrace.run.finished.v1"

    loss: Loss
    adapter_path: RelativePath
    adapter_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256 of `adapter_model.safetensors`."""


class RunFailed(RunReport):
    """A job cannot go on here. `permanent`: it cannot go on anywhere (its data are bad, say)."""

    TYPE: ClassVar = "millrace.run.failed.v1"

    error: Text
    permanent: bool
