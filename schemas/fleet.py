"""Events of the `fleet` topic: reports about nodes and their runs."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from schemas.base import (
    Event,
    Identifier,
    PositiveSamples,
    Record,
    RelativePath,
    RunId,
    Samples,
    Text,
    distinct,
)
from schemas.kind import InputTopic
from schemas.profiles import MeasuredSteps

FLEET = InputTopic(
    "fleet", "Reports of executors: nodes that come and go, runs, their progress.", "nodes", "node"
)
"""Topic of all reports. Policies register further events of their runners for it, so that all reports of a
node keep their order."""

Loss = Annotated[float, Field(ge=0, le=1e9)]
NodeSeconds = Annotated[float, Field(ge=0, le=1e9)]
"""Time of the steps of a run. The time of a shared step is divided equally among its runs; a run with fewer
tokens than others is charged by tokens. So no run is charged more than its steps would take alone."""


UsedGib = Annotated[float, Field(ge=0, le=1e6)]
"""Memory of a run on a device, besides the base model, in the largest of the steps that it took alone."""


RunnerNames = Annotated[
    tuple[Identifier, ...],
    Field(min_length=1, max_length=16, json_schema_extra={"uniqueItems": True}),
    AfterValidator(distinct),
]
"""Names of a node's runners, as in `Command.RUNNER`."""


class FleetEvent(Event):
    """A report of a node, or about one."""

    node: Identifier


class SignOfLife(FleetEvent):
    """A sign that a node is online, with its capabilities."""

    base_model: Identifier
    runners: RunnerNames


MAX_HELD_RUNS = 128


class NodeOnline(SignOfLife):
    """An executor serves this node from now on."""

    TYPE: ClassVar = "millrace.node.online.v1"

    # Omitted if it is the default, so that reports written before it was added keep their bytes.
    runs: Annotated[tuple[RunId, ...], Field(max_length=MAX_HELD_RUNS, exclude_if=lambda runs: not runs)] = ()
    """Runs of its journal that it continues. All other runs of the node are over. Runs of commands that it
    has not read yet are not listed."""


class NodeHeartbeat(SignOfLife):
    """A node is online. Intake notes it and keeps it out of the ledger: see `NodeSeen`, `NodeSilent`."""

    TYPE: ClassVar = "millrace.node.heartbeat.v1"


class NodeOffline(FleetEvent):
    """An executor stops in an orderly way: its runs are checkpointed."""

    TYPE: ClassVar = "millrace.node.offline.v1"

    reason: Text = ""
    """Reason for an operator, such as a full disk. With a full disk, runs are not checkpointed. Empty after a
    requested stop."""


class NodeSeen(SignOfLife):
    """A node that counts as down in its cell, or has not reported before, is online. Only intake writes it,
    to the ledger.
    """

    TYPE: ClassVar = "millrace.node.seen.v1"


class NodeSilent(FleetEvent):
    """A node was silent for longer than the cell's timeout. Only intake writes it, to the ledger."""

    TYPE: ClassVar = "millrace.node.silent.v1"

    silent_s: Annotated[float, Field(ge=0, le=1e9)]
    """Time without a report while intake listened; time in which it could not listen is excluded."""


MAX_REFUSED_RUNS = 48
RefusalReason = Literal[
    "unknown_type",
    "runner_missing",
    "runner_failed",
    "malformed",
    "impossible",
    "out_of_date",
    "unknown_run",
    "no_room",
]
"""Reason of a refusal. `unknown_type`: the node does not support commands of this type. `runner_missing`: it
supports them, and lacks the runner. `runner_failed`: the runner is unusable until the executor is restarted.
`malformed`: the fields are not those of the type. `impossible`: no cell sends such a command. `out_of_date`:
the slot is over, or the node has a newer generation of the job. `unknown_run`: the command is about a run
that the node does not have. `no_room`: the disks are full, and the node is offline until they have room."""


class RefusedRun(Record):
    """A run that a node does not have, because it never began or is over."""

    run_id: RunId
    job_id: Identifier


class CommandRefused(FleetEvent):
    """A node has refused a command, and continues with the next."""

    TYPE: ClassVar = "millrace.command.refused.v1"

    command_id: Annotated[str, Field(min_length=1, max_length=256)]
    """Id of the command's decision."""
    runner: Identifier | None
    """Runner of the command; None if the node does not support its type."""
    reason: RefusalReason
    detail: Text
    runs: Annotated[tuple[RefusedRun, ...], Field(max_length=MAX_REFUSED_RUNS)] = ()
    """Runs that the command names, as far as the node could read it. The node does not have them: a run to
    begin has failed there, and a run to end is over."""


class RunReport(FleetEvent):
    """A report of a node about one of its runs."""

    run_id: RunId
    job_id: Identifier
    samples_done: Samples

    @property
    def ends_run(self) -> bool:
        """Whether the run is over on the node."""
        return False


class RunStarted(RunReport):
    """A job starts to train on a node, with `samples_done` of its work done before."""

    TYPE: ClassVar = "millrace.run.started.v1"

    dataset_samples: PositiveSamples | None = None
    """Number of records in the job's file; None if the executor did not need to read it."""


class RunProgressed(RunReport):
    """A job's progress. With `complete`, the run is over and checkpointed; the job may continue in another
    run.
    """

    TYPE: ClassVar = "millrace.run.progressed.v1"

    loss: Loss | None = None
    """Training loss; None if no loss is measured."""
    node_s: NodeSeconds
    """Time of the node used by the run."""
    # Omitted if it is the default, so that reports written before it was added keep their bytes.
    memory_gib: Annotated[UsedGib | None, Field(exclude_if=lambda gib: gib is None)] = None
    """Memory of the run besides the base model; None if not measured."""
    measured: Annotated[MeasuredSteps | None, Field(exclude_if=lambda steps: steps is None)] = None
    """Its steps since the last report; None if none was measured."""
    complete: bool

    @property
    def ends_run(self) -> bool:
        """Whether it is complete."""
        return self.complete


AdapterDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""BLAKE2b-256 of `adapter_model.safetensors`, in hexadecimal digits."""


class RunFinished(RunReport):
    """A run has done all its work. If it leaves an adapter, this is at `adapter_path`, below the executors'
    output root.
    """

    TYPE: ClassVar = "millrace.run.finished.v1"

    loss: Loss | None = None
    """Training loss; None if no loss is measured."""
    adapter_path: RelativePath | None = None
    """Path of the adapter, together with `adapter_digest`; None without an adapter."""
    adapter_digest: AdapterDigest | None = None
    """BLAKE2b-256 of `adapter_model.safetensors`; None without an adapter."""

    @property
    def ends_run(self) -> bool:
        """It does."""
        return True

    @model_validator(mode="after")
    def _adapter_with_its_digest(self) -> Self:
        if (self.adapter_path is None) != (self.adapter_digest is None):
            raise ValueError("adapter_path and adapter_digest go together")
        return self


class RunFailed(RunReport):
    """A job cannot continue on this node. `permanent`: it cannot continue anywhere, for example with bad
    data.
    """

    TYPE: ClassVar = "millrace.run.failed.v1"

    error: Text
    permanent: bool
    # Omitted if it is the default, so that reports written before it was added keep their bytes.
    cause: Annotated[Literal["data_differ"] | None, Field(exclude_if=lambda cause: cause is None)] = None
    """Cause that a zone acts on. `data_differ`: the data are not those that a vendor delivered."""
    # Omitted if it is the default, so that reports written before it was added keep their bytes.
    memory_gib: Annotated[UsedGib | None, Field(exclude_if=lambda gib: gib is None)] = None
    """Memory of the run besides the base model; None if not measured."""

    @property
    def ends_run(self) -> bool:
        """It does."""
        return True
