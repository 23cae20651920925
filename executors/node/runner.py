"""Interface between the node service and a runner, which obeys one kind of command.

A runner is found by its name among the entry points of the group `millrace.runners`, so a new one needs no
change here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal, Protocol

from pydantic import JsonValue

from executors.node.room import DiskSpace
from executors.node.settings import ExecutorSettings
from schemas.commands import Command
from schemas.errors import MissingExtraError
from schemas.fleet import FleetEvent
from schemas.service_base import SETTINGS_FAULTS, described_fault

GROUP = "millrace.runners"

Activity = Literal["working", "waiting", "idle"]
"""Time of a runner's next work: at once, after a while, or only after the next command."""

CloseReason = Literal["node_stops", "no_room"]


class UnfitError(RuntimeError):
    """A resource that the node needs is missing or cannot be used; a restart does not help."""


class LoadingInterruptedError(RuntimeError):
    """A process that a runner needs was killed while the runner was loaded; a restart may help."""


class DeviceLostError(RuntimeError):
    """The device is unusable until the process is restarted; no run or runner is the cause."""


class Clock(Protocol):
    def time_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...


@dataclass(frozen=True)
class Objection:
    """Reason why a command is not applied."""

    kind: Literal["out_of_date", "impossible", "unknown_run"]
    """Reason for the cell, see `RefusalReason`. With `unknown_run` the command is applied all the same, as it
    may demand that files are removed."""
    detail: str


@dataclass(frozen=True)
class RunnerContext:
    """Resources that a node gives each of its runners."""

    settings: ExecutorSettings
    report: Callable[[FleetEvent], None]
    """Queues a report; reports keep their order. A runner must not catch its errors."""
    room: DiskSpace
    """The disks: a runner whose files they refuse raises `NoRoomError`."""
    clock: Clock


class Runner(Protocol):
    """Obeys one kind of command. All methods are called by the same thread.

    Its order is always checkpoint, report, state: state on disk is reported, and reported state gets into
    `state`, which the node writes once the broker has the reports.

    A method that raises `NoRoomError` takes the node offline until there is room, with all its runners. One
    that raises `DeviceLostError` ends the process. Any other error ends only this runner, until the process
    is restarted; the last runner of a node ends the process.
    """

    def validate(self, command: Command) -> Objection | None:
        """Return why a command of this runner is not to be applied; None if it is. Each objection is reported
        to the cell. The node never repeats a command, so an equal command is another order."""

    def apply(self, command: Command) -> None:
        """Accept a command; the work itself is for `advance`. One that `CANCELS` may be repeated."""

    def disown(self, run_id: str, job_id: str) -> None:
        """End a run that the cell does not have: publish nothing, keep the files on disk, report the end. Do
        nothing if the runner has no such run."""

    def held_runs(self) -> Sequence[str]:
        """Return the ids of the runs that it continues. After `restore`, those of the process before, without
        runs that it only reports as over."""

    def advance(self) -> Activity:
        """Do the next piece of work, such as a training step. Calls alternate with the other runners."""

    def close(self, reason: CloseReason) -> None:
        """End every run at its position: checkpointed, then reported. With `no_room`, state that cannot be
        kept is dropped without an error; `apply` and `advance` may follow once there is room."""

    def state(self) -> JsonValue:
        """Return its part of the node's journal, which the node writes whenever it has changed. Progress of a
        run belongs in checkpoints, or each step costs a write."""

    def restore(self, state: JsonValue) -> None:
        """Continue from a part of a journal; called first, if there is one. The node is not online yet:
        reports are for `advance` and `close`.

        Raises:
            ValueError: the part is invalid for this runner.
        """


class RunnerKind(Protocol):
    """A runner that is not loaded yet. Its factory takes no arguments, reads its own settings, and rejects
    early what cannot work: by an `UnfitError`, or the `ValidationError` of its settings."""

    @property
    def commands(self) -> tuple[type[Command], ...]:
        """Return the types that it obeys; their `RUNNER` is its name."""

    def load(self, context: RunnerContext) -> Runner:
        """Load its resources, such as a base model: seconds to minutes."""


def find_runners(settings: ExecutorSettings) -> dict[str, RunnerKind]:
    """Return the runners that the settings name, in that order, not loaded yet.

    Raises:
        UnfitError: a runner is not installed, has another name, or cannot work with its settings.
    """
    installed = {point.name: point for point in entry_points(group=GROUP)}
    kinds: dict[str, RunnerKind] = {}
    for name in settings.runners:
        if name not in installed:
            known = ", ".join(sorted(installed)) or "none"
            raise UnfitError(f"no runner {name} is installed (entry points {GROUP}): there is {known}")
        try:
            make = installed[name].load()
        except (ImportError, AttributeError) as error:
            raise UnfitError(f"runner {name}: {installed[name].value} cannot be imported: {error}") from error
        try:
            kinds[name] = make()
        except MissingExtraError as error:
            raise UnfitError(f"runner {name}: {error}") from None
        except SETTINGS_FAULTS as error:
            raise UnfitError(f"runner {name}: settings: {described_fault(error)}") from None
        strange = [model.TYPE for model in kinds[name].commands if name != model.RUNNER]
        if strange:
            raise UnfitError(f"runner {name}: {', '.join(strange)} is for a runner of another name")
    return kinds


def command_types(kinds: Mapping[str, RunnerKind]) -> dict[str, type[Command]]:
    """Return the commands that some runners obey, by CloudEvents type."""
    return {model.TYPE: model for kind in kinds.values() for model in kind.commands}
