"""A process's end of the pipe to its node."""

import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

D = TypeVar("D")


class NodeLink(Generic[D]):
    """Receives a node's directives in a thread, and sends messages to it.

    When the node's process ends, this process ends at once, and leaves other processes no failure note: its
    work would not be reported.
    """

    def __init__(
        self,
        connection: "Connection[bytes, bytes]",
        directives: TypeAdapter[D],
        on_directive: Callable[[D], None],
    ) -> None:
        """Receive nothing before `listen`; `on_directive` is called by the receiving thread."""
        self._connection = connection
        self._directives = directives
        self._on_directive = on_directive
        self._sending = threading.Lock()

    def listen(self) -> None:
        """Start to receive."""
        threading.Thread(target=self._listen, name="node-link", daemon=True).start()

    def send(self, message: BaseModel) -> None:
        """Send a message to the node."""
        with self._sending:
            try:
                self._connection.send_bytes(message.model_dump_json().encode())
            except OSError:
                os._exit(1)

    def _listen(self) -> None:
        while True:
            try:
                directive = self._directives.validate_json(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)
            self._on_directive(directive)
