"""A worker process's end of the pipe to its node."""

import os
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection

from executors.tuner.messages import (
    DIRECTIVES,
    Halt,
    Over,
    ProfilePart,
    Ready,
    Switched,
    TaskPart,
    Told,
    Unfit,
)


class Inbox:
    """Knows the parts that wait, and which are to end. When the node's process is gone, so is this one,
    whatever it is doing."""

    def __init__(
        self,
        connection: "Connection[bytes, bytes]",
        on_task: Callable[[TaskPart], None],
    ) -> None:
        """Listen; `on_task` is called at once, by the listening thread."""
        self._connection = connection
        self._on_task = on_task
        self._parts: deque[TaskPart | ProfilePart] = deque()
        self._halted: set[int] = set()
        self._changed = threading.Condition()
        self._sending = threading.Lock()

    def listen(self) -> None:
        """Begin to listen, in a thread."""
        threading.Thread(target=self._listen, name="inbox", daemon=True).start()

    def next_part(self) -> TaskPart | ProfilePart:
        """The next part, waited for."""
        with self._changed:
            while not self._parts:
                self._changed.wait()
            return self._parts.popleft()

    def is_halted(self, part: int) -> bool:
        """Whether a part is to end."""
        with self._changed:
            return part in self._halted

    def forget(self, part: int) -> None:
        """A part is over."""
        with self._changed:
            self._halted.discard(part)

    def tell(self, word: Ready | Unfit | Told | Switched | Over) -> None:
        """Say something to the node."""
        with self._sending:
            self._connection.send_bytes(word.model_dump_json().encode())

    def _listen(self) -> None:
        while True:
            try:
                directive = DIRECTIVES.validate_json(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)
            if isinstance(directive, TaskPart):
                self._on_task(directive)
            with self._changed:
                if isinstance(directive, Halt):
                    self._halted.add(directive.part)
                else:
                    self._parts.append(directive)
                self._changed.notify_all()
