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

FLEET = InputTopic(
    "fleet", "What executors saw: nodes that come and go, runs, their progress.", "nodes", "node"
)
"""A policy whose runners report more than the events below registers them for this topic: so all that a node
reports keeps its order."""

Loss = Annotated[float, Field(ge=0, le=1e9)]
NodeSeconds = Annotated[float, Field(ge=0, le=1e9)]
"""The time of the steps that a run took part in. Of a step that runs share, each has had an equal part, or a
part by its tokens where that is less: no more than it would have taken alone."""


TakenGib = Annotated[float, Field(ge=0, le=1e6)]
"""Memory that a run took of a device beside the base model in the largest of the steps that it took alone."""


RunnerNames = Annotated[
    tuple[Identifier, ...],
    Field(min_length=1, max_length=16, json_schema_extra={"uniqueItems": True}),
    AfterValidator(distinct),
]
"""Runners of a node, as in `Command.RUNNER`."""


class FleetEvent(Event):
    """A report of a node, or about one."""

    node: Identifier


class SignOfLife(FleetEvent):
    """The node is there, and this is what it can do."""

    base_model: Identifier
    runners: RunnerNames


MAX_HELD_RUNS = 128


class NodeOnline(SignOfLife):
    """An executor serves this node from now on."""

    TYPE: ClassVar = "millrace.node.online.v1"

    # Left out where it is the default, so that reports written before it was added keep their bytes.
    runs: Annotated[tuple[RunId, ...], Field(max_length=MAX_HELD_RUNS, exclude_if=lambda runs: not runs)] = ()
    """The runs of its journal that it continues. All other runs of the node are over, whoever ordered them.
    Commands that it has not read yet are not among them."""


class NodeHeartbeat(SignOfLife):
    """A node is alive. Intake notes it and keeps it out of the ledger: see `NodeHeard`, `NodeSilent`."""

    TYPE: ClassVar = "millrace.node.heartbeat.v1"


class NodeOffline(FleetEvent):
    """An executor stops in an orderly way: its runs are checkpointed."""

    TYPE: ClassVar = "millrace.node.offline.v1"

    reason: Text = ""
    """For an operator, such as a full disk, which takes no checkpoints either; empty where the executor was
    asked to stop."""


class NodeHeard(SignOfLife):
    """A node that its cell considers lost, or has not heard yet, is alive. Only intake writes it, to the
    ledger.
    """

    TYPE: ClassVar = "millrace.node.heard.v1"


class NodeSilent(FleetEvent):
    """A node was silent for longer than the cell's timeout. Only intake writes it, to the ledger."""

    TYPE: ClassVar = "millrace.node.silent.v1"

    silent_s: Annotated[float, Field(ge=0, le=1e9)]
    """For so long intake listened and did not hear the node; time in which it could not listen is left
    out."""


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
"""`unknown_type`: the node knows no commands of this type. `runner_missing`: it knows them, and lacks the
runner. `runner_failed`: the runner is out of order until the executor is started again. `malformed`: the
fields are not those of the type. `impossible`: no cell sends such a command.
`out_of_date`: the slot is over, or the node has a newer generation of the job. `unknown_run`: the command is
about a run that the node does not have. `no_room`: the disks are full, and the node is offline until they are
not."""


class RefusedRun(Record):
    """A run that a node does not have, because it did not begin it or because it is over."""

    run_id: RunId
    job_id: Identifier


class CommandRefused(FleetEvent):
    """A node has refused a command, and continues with the next."""

    TYPE: ClassVar = "millrace.command.refused.v1"

    command_id: Annotated[str, Field(min_length=1, max_length=256)]
    """Id of the decision that the command is."""
    runner: Identifier | None
    """Who is to obey it; None where the node does not know commands of its type."""
    reason: RefusalReason
    detail: Text
    runs: Annotated[tuple[RefusedRun, ...], Field(max_length=MAX_REFUSED_RUNS)] = ()
    """Those that the command names, as far as the node could read it. The node does not have them: what was
    to begin has failed there, and what was to end is over."""


class RunReport(FleetEvent):
    """A report of a node about one of its runs."""

    run_id: RunId
    job_id: Identifier
    samples_done: Samples

    @property
    def ends_run(self) -> bool:
        """Whether nothing of the run is on the node any more."""
        return False


class RunStarted(RunReport):
    """A job starts to train on a node, with `samples_done` of its work done before."""

    TYPE: ClassVar = "millrace.run.started.v1"

    dataset_samples: PositiveSamples | None = None
    """Records that the executor has counted in the job's file; None where it had no need to read it."""


class RunProgressed(RunReport):
    """A job's progress. With `complete`, the run is over and checkpointed; the job may continue in another
    run.
    """

    TYPE: ClassVar = "millrace.run.progressed.v1"

    loss: Loss | None = None
    """None where no loss is measured."""
    node_s: NodeSeconds
    """Time of the node that the run has had."""
    # Left out where it is the default, so that reports written before it was added keep their bytes.
    memory_gib: Annotated[TakenGib | None, Field(exclude_if=lambda gib: gib is None)] = None
    """None where it was not measured."""
    complete: bool

    @property
    def ends_run(self) -> bool:
        """Whether it is complete."""
        return self.complete


class RunFinished(RunReport):
    """A run has done all its work. If it leaves an adapter, this is at `adapter_path`, below the executors'
    output root.
    """

    TYPE: ClassVar = "millrace.run.finished.v1"

    loss: Loss | None = None
    """None where no loss is measured."""
    adapter_path: RelativePath | None = None
    """Given with `adapter_digest`; None where the run leaves no adapter."""
    adapter_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """BLAKE2b-256 of `adapter_model.safetensors`; None where the run leaves no adapter."""

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
    # Left out where it is the default, so that reports written before it was added keep their bytes.
    memory_gib: Annotated[TakenGib | None, Field(exclude_if=lambda gib: gib is None)] = None
    """None where it was not measured."""

    @property
    def ends_run(self) -> bool:
        """It does."""
        return True
