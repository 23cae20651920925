"""Nodes of the model: the real node service over light files of commands and reports."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from executors.node.commands import Acceptance, CommandRecord
from executors.node.journal import Journal, JournalFile
from executors.node.node_service import NodeService
from executors.node.room import DiskSpace, NoRoomError
from executors.node.runner import Runner, RunnerContext
from executors.node.settings import ExecutorSettings
from schemas.base import Event
from schemas.commands import Command
from schemas.fleet import FleetEvent, NodeOnline

CELL = "c"


class LightRunners(Protocol):
    """Factory of a node's runner, and the work of its processes."""

    name: str
    base_model: str
    commands: tuple[type[Command], ...]

    def begin(self, context: RunnerContext) -> Runner:
        """A runner without work."""

    def kill(self, node: str) -> None:
        """The processes of a node are gone."""

    def advance(self, time_s: float) -> None:
        """It is `time_s` now."""

    def occupied(self, node: str) -> list[str]:
        """Return the holders of a node's GPUs, in words."""


@dataclass
class VirtualTime:
    """See `Clock`."""

    now_s: float = 0.0

    def time_s(self) -> float:
        return self.now_s


@dataclass
class LightCommands:
    """See `CommandLog`: the records that have come so far."""

    values: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    caught_up: bool = True

    def read(self, timeout_s: float) -> list[CommandRecord]:
        first, self.next_offset = self.next_offset, len(self.values)
        return [CommandRecord(first + at, value) for at, value in enumerate(self.values[first:])]


class LightReports:
    """See `FleetReports`."""

    def __init__(self, send: Callable[[str, FleetEvent], None], prefix: str) -> None:
        self._send = send
        self._ids = (f"{prefix}-{number}" for number in itertools.count(1))

    def send(self, event: FleetEvent) -> None:
        self._send(next(self._ids), event)

    def check(self) -> None:
        pass

    def flush(self, timeout_s: float | None = None) -> None:
        pass


class ModelNode:
    """One node: its log of commands and its journal outlive its process."""

    def __init__(
        self,
        name: str,
        root: Path,
        clock: VirtualTime,
        runners: LightRunners,
        send: Callable[[str, Event], None],
    ) -> None:
        self.name = name
        self.values: list[bytes] = []
        self._clock = clock
        self._runners = runners
        self._send = send
        self._settings = ExecutorSettings(
            cell=CELL,
            node=name,
            runners=(runners.name,),
            base_model=runners.base_model,
            output_root=root / "output",
            state_root=root / "state",
        )
        folder = root / "state" / CELL / "nodes" / name
        folder.mkdir(parents=True)
        self._journal_file = JournalFile(folder)
        self._starts = 0
        self._stopping: Callable[[], bool] = lambda: False
        self._node: NodeService | None = None
        self.runner: Runner | None = None

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._node is not None

    def online(self) -> NodeOnline:
        """Return the process's `node.online`."""
        assert self._node is not None
        return self._node.online

    def start(self) -> None:
        """Start the process, which goes on from its journal."""
        self._starts += 1
        journal = self._journal_file.load().reading("model", "commands", 0)
        reports: Any = LightReports(self._send, f"{self.name}-{self._starts}")
        room = DiskSpace({"root": self._settings.state_root.parent}, least_free_bytes=0)
        context = RunnerContext(self._settings, reports.send, room, self._clock)
        self.runner = self._runners.begin(context)
        types = {model.TYPE: model for model in self._runners.commands}
        commands: Any = LightCommands(self.values, journal.next_offset)
        self._node = NodeService(
            context,
            {self._runners.name: self.runner},
            Acceptance(CELL, self.name, types),
            commands,
            reports,
            self._journal_file,
            journal,
            stopping=lambda: self._stopping(),
        )
        reports.send(self._node.online)
        self._node.catch_up()

    def kill(self) -> None:
        """The process and those that it has started are gone."""
        self._node = self.runner = None
        self._runners.kill(self.name)

    def lose_journal(self) -> None:
        """Delete the journal of applied commands: the next process reads all commands again."""
        self._journal_file.save(Journal())

    def turn(self) -> None:
        """One turn of the process."""
        if self._node is not None:
            self._node.turn(0.0)

    def wait_for_room(self) -> None:
        """One poll of a process that has gone offline, since its disks are full."""
        assert self._node is not None
        answers = iter([False])
        self._stopping = lambda: next(answers, True)
        self._node.leave()
        self._node.await_room(NoRoomError("full", 1 << 60), lambda _reason: None)
        self._stopping = lambda: False

    def occupied(self) -> list[str]:
        """Return the holders of GPUs here and the runs that the runner continues, in words."""
        held = [] if self.runner is None else list(self.runner.held_runs())
        return [*self._runners.occupied(self.name), *held]
