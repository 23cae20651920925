"""Messages between a node's runner and its ranks, as JSON over a pipe."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from executors.gang.messages import Membership, Report
from executors.tuner.settings import TunerSettings
from schemas.base import Identifier, Record, UnixTime
from schemas.merging.commands import JobOrder, ProfileOrdered, TaskAssigned

Outcome = Literal["finished", "stopped", "failed"]
"""`stopped`: the task was halted, here or on another node."""


class RankEnvironment(Record):
    """Devices and settings of a node's ranks, the same for all."""

    cell: Identifier
    node: Identifier
    base_model: Identifier
    """Its id in the zone."""
    state_root: Path
    output_root: Path
    settings: dict[str, Any]
    """Fields of `TunerSettings` in the node's process, used instead of the rank's environment."""
    gpu: int
    """Number of the rank's GPU on the node."""

    def tuner_settings(self) -> TunerSettings:
        return TunerSettings.model_validate(self.settings)


class TaskPart(Record):
    """A rank's part of a task. It begins when all earlier parts are over."""

    kind: Literal["task"] = "task"
    part: int
    """Number of the part, unique on the node."""
    command: TaskAssigned
    membership: Membership
    follows: int | None = None
    """The part whose connected ranks it may take over: all ranks of both parts are the same, and run one
    pipeline-parallel task that is to end."""

    @property
    def meeting(self) -> str:
        return meeting_of(self.command)


class ProfilePart(Record):
    """A rank's part of a profile run."""

    kind: Literal["profile"] = "profile"
    part: int
    command: ProfileOrdered
    membership: Membership

    @property
    def meeting(self) -> str:
        return meeting_of(self.command)


def meeting_of(command: TaskAssigned | ProfileOrdered) -> str:
    """Return the name of the meeting place of a command's ranks."""
    return command.task_id if isinstance(command, TaskAssigned) else f"profile-{command.order.job_id}"


class Halt(Record):
    """Order to end a part at the next boundary of a step, with a checkpoint, or before it begins."""

    kind: Literal["halt"] = "halt"
    part: int


class Prewarm(Record):
    """Order to the node's indexer to check and count the data of a job."""

    kind: Literal["prewarm"] = "prewarm"
    order: JobOrder
    drop_s: UnixTime
    """Unix time at which an unused index is removed (s)."""


Directive: TypeAlias = TaskPart | ProfilePart | Halt


class Ready(Record):
    """The base model is loaded."""

    kind: Literal["ready"] = "ready"


class Unfit(Record):
    """The base model cannot be loaded; the process ends."""

    kind: Literal["unfit"] = "unfit"
    error: str


class TaskReport(Report):
    """A report of a run of a part."""

    part: int


class Switched(Record):
    """The first step of a task on a rank that had another task before."""

    kind: Literal["switched"] = "switched"
    part: int
    gap_s: float
    """Time from the end of the last step of the task before to the start of this one's first (s)."""
    step_s: float
    """Duration of the first step (s)."""
    overlaps: bool
    """Whether it took over connected ranks before the task before had ended."""


class Over(Record):
    """The end of a part, whose files are all on disk."""

    kind: Literal["over"] = "over"
    part: int
    outcome: Outcome
    needed_bytes: int | None = None
    """Set if a disk refused a write of this size."""


Message: TypeAlias = Ready | Unfit | TaskReport | Switched | Over

DIRECTIVES: TypeAdapter[Directive] = TypeAdapter(Annotated[Directive, Field(discriminator="kind")])
MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])
