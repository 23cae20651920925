"""The pipe of a process to its node, and the node's directives to a rank."""

import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from executors.gang.messages import DIRECTIVES, Directive, Ended, Instruction, Membership, Release

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
        threading.Thread(target=self._listen, name="node-link", daemon=True).start()

    def send(self, message: BaseModel) -> None:
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


class Inbox:
    """Newest directive on the rank's place, and the instructions in order."""

    def __init__(self, connection: "Connection[bytes, bytes]", membership: Membership) -> None:
        """Start to receive.

        Args:
            membership: the rank's first place.
        """
        self._changed = threading.Condition()
        self._newest: Membership | Release = membership
        self._instructions: list[Instruction] = []
        self._has_news = False
        self._is_committed = False
        self._link = NodeLink(connection, DIRECTIVES, self._receive)
        self._link.listen()

    def send(self, message: BaseModel) -> None:
        self._link.send(message)

    @property
    def newest(self) -> Membership | Release:
        """Return the newest place of the rank, or its release; earlier directives are void."""
        with self._changed:
            self._has_news = False
            return self._newest

    @property
    def release(self) -> Release | None:
        """Return the rank's release, if that is its newest directive."""
        newest = self.newest
        return newest if isinstance(newest, Release) else None

    def drain_instructions(self) -> list[Instruction]:
        """Return the instructions since the last call, in order."""
        with self._changed:
            self._has_news = False
            drained, self._instructions = self._instructions, []
            return drained

    def wait(self, timeout_s: float) -> None:
        """Wait until a new directive arrives, or for a time."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news, timeout_s)

    def commit(self) -> None:
        """Mark this rank as one that others wait for: from now on it ends in order. Before, a release ends it
        at once, even while it loads a model."""
        with self._changed:
            self._is_committed = True

    def _receive(self, directive: Directive) -> None:
        with self._changed:
            if isinstance(directive, Instruction):
                self._instructions.append(directive)
            else:
                self._newest = directive
                if isinstance(directive, Release) and not self._is_committed:
                    self.send(Ended(reason="left", samples_done=0, node_s=0.0))
                    os._exit(0)
            self._has_news = True
            self._changed.notify_all()
