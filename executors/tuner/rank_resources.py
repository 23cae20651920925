"""Resources of a rank that all its tasks use, such as the queue of their parts."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from executors.gang.inbox import NodeLink
from executors.node.run_reports import RunReports
from executors.tuner.checkpoints import TuningCheckpoints
from executors.tuner.keeper import Keeper
from executors.tuner.messages import DIRECTIVES, Directive, Halt, Message, ProfilePart, TaskPart, TaskReport
from executors.tuner.settings import TunerSettings
from schemas.merging.commands import JobOrder


class PartQueue:
    """Parts that wait, and parts that are to end."""

    def __init__(
        self,
        connection: "Connection[bytes, bytes]",
        on_task: Callable[[TaskPart], None],
    ) -> None:
        """Receive nothing before `listen`; `on_task` is called at once, by the receiving thread."""
        self._on_task = on_task
        self._parts: deque[TaskPart | ProfilePart] = deque()
        self._halted: set[int] = set()
        self._changed = threading.Condition()
        self._link = NodeLink(connection, DIRECTIVES, self._receive)

    def listen(self) -> None:
        self._link.listen()

    def next_part(self) -> TaskPart | ProfilePart:
        """Wait for the next part, and return it."""
        with self._changed:
            while not self._parts:
                self._changed.wait()
            return self._parts.popleft()

    def is_halted(self, part: int) -> bool:
        """Return whether a part is to end."""
        with self._changed:
            return part in self._halted

    def forget(self, part: int) -> None:
        with self._changed:
            self._halted.discard(part)

    def send(self, message: Message) -> None:
        self._link.send(message)

    def _receive(self, directive: Directive) -> None:
        if isinstance(directive, TaskPart):
            self._on_task(directive)
        with self._changed:
            if isinstance(directive, Halt):
                self._halted.add(directive.part)
            else:
                self._parts.append(directive)
            self._changed.notify_all()


@dataclass
class RankResources:
    """Objects of a rank that all its tasks use.

    Attributes:
        stepped_s: end of the last step of any task, on the monotonic clock; None before the first.
    """

    cell: str
    node: str
    device: torch.device
    settings: TunerSettings
    checkpoints: TuningCheckpoints
    keeper: Keeper
    inbox: PartQueue
    stepped_s: float | None = None

    def reports_of(self, part: int, order: JobOrder) -> RunReports:
        """Return the reports of a run of a part, which the node sends."""
        return RunReports(
            self.cell, self.node, order, lambda report: self.inbox.send(TaskReport.of(report, part=part))
        )
