"""Queue of the parts of tasks that a node sends a rank."""

import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection

from executors.gang.link import NodeLink
from executors.tuner.messages import (
    DIRECTIVES,
    Halt,
    Over,
    ProfilePart,
    Ready,
    Switched,
    TaskPart,
    TaskReport,
    Unfit,
)


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
        """Start to receive."""
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
        """Remove a part that is over."""
        with self._changed:
            self._halted.discard(part)

    def send(self, message: Ready | Unfit | TaskReport | Switched | Over) -> None:
        """Send a message to the node."""
        self._link.send(message)

    def _receive(self, directive: TaskPart | ProfilePart | Halt) -> None:
        if isinstance(directive, TaskPart):
            self._on_task(directive)
        with self._changed:
            if isinstance(directive, Halt):
                self._halted.add(directive.part)
            else:
                self._parts.append(directive)
            self._changed.notify_all()
