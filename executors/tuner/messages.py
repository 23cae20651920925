"""Messages between a node's runner and its ranks, as JSON over a pipe."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from executors.gang.membership import Membership
from executors.tuner.settings import TunerSettings
from schemas.base import Identifier, Record, UnixTime
from schemas.merging.commands import JobOrder, ProfileOrdered, TaskAssigned

Outcome = Literal["finished", "stopped", "failed"]
"""`stopped`: the task was halted, here or on another node."""


class Place(Record):
    """Where a node's ranks are, and how they work; the same for all of them."""

    cell: Identifier
    node: Identifier
    base_model: Identifier
    """As the zone calls it."""
    state_root: Path
    output_root: Path
    settings: dict[str, Any]
    """Fields of `TunerSettings` in the node's process, whatever the environment has by then."""
    gpu: int
    """Which of the node's GPUs the rank has."""

    def tuner_settings(self) -> TunerSettings:
        """The settings."""
        return TunerSettings.model_validate(self.settings)


class TaskPart(Record):
    """One rank's part of a task. It begins when the parts given before it are over."""

    kind: Literal["task"] = "task"
    part: int
    """Tells it from all other parts of the node."""
    command: TaskAssigned
    membership: Membership
    follows: int | None = None
    """The part whose ranks it takes over as they are connected, if it comes to that: all of its ranks,
    with the same ranks, are those of one pipeline-parallel task that is to end."""

    @property
    def meeting(self) -> str:
        """Name of the ranks' meeting place."""
        return meeting_of(self.command)


class ProfilePart(Record):
    """One rank's part of a profile run."""

    kind: Literal["profile"] = "profile"
    part: int
    command: ProfileOrdered
    membership: Membership

    @property
    def meeting(self) -> str:
        """Name of the ranks' meeting place."""
        return meeting_of(self.command)


def meeting_of(command: TaskAssigned | ProfileOrdered) -> str:
    """Return the name of the meeting place of a command's ranks."""
    return command.task_id if isinstance(command, TaskAssigned) else f"profile-{command.order.job_id}"


class Halt(Record):
    """A part ends at the next boundary of a step, checkpointed, or before it begins."""

    kind: Literal["halt"] = "halt"
    part: int


class Prewarm(Record):
    """The data of a job is to be checked and counted: for the node's indexer."""

    kind: Literal["prewarm"] = "prewarm"
    order: JobOrder
    drop_s: UnixTime
    """When it is given up, if nobody has taken it."""


Directive = Annotated[TaskPart | ProfilePart | Halt, Field(discriminator="kind")]


class Ready(Record):
    """The base model is loaded."""

    kind: Literal["ready"] = "ready"


class Unfit(Record):
    """The base model cannot be loaded; the process ends."""

    kind: Literal["unfit"] = "unfit"
    error: str


class TaskReport(Record):
    """A report of a run, to be passed on as it is."""

    kind: Literal["report"] = "report"
    part: int
    type: str
    """The CloudEvents type."""
    data: dict[str, Any]


class Switched(Record):
    """A task has taken its first step, and the rank had another before."""

    kind: Literal["switched"] = "switched"
    part: int
    gap_s: float
    """From the end of the last step of the task before to the begin of this one's first."""
    step_s: float
    """The first step."""
    overlaps: bool
    """Whether it took the ranks over as they were connected, while the task before still ended."""


class Over(Record):
    """A part has ended, and what was to be written of it is on disk."""

    kind: Literal["over"] = "over"
    part: int
    outcome: Outcome
    needed_bytes: int | None = None
    """Set where a disk refused so many bytes."""


Message = Annotated[Ready | Unfit | TaskReport | Switched | Over, Field(discriminator="kind")]

DIRECTIVES: TypeAdapter[TaskPart | ProfilePart | Halt] = TypeAdapter(Directive)
MESSAGES: TypeAdapter[Ready | Unfit | TaskReport | Switched | Over] = TypeAdapter(Message)
