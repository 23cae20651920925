"""A process's end of the pipe to its node."""

import os
import threading
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter

from executors.gang.messages import Ended, Release

D = TypeVar("D")


class Inbox(Generic[D]):
    """Knows what the node has told. When the node's process is gone, so is this one, whatever it is doing."""

    def __init__(self, connection: "Connection[bytes, bytes]", directives: TypeAdapter[D]) -> None:
        self._connection = connection
        self._directives = directives
        self._changed = threading.Condition()
        self._told: list[D] = []
        self._release: Release | None = None
        self._is_committed = False
        threading.Thread(target=self._listen, name="inbox", daemon=True).start()

    @property
    def release(self) -> Release | None:
        """The last one that was told."""
        with self._changed:
            return self._release

    def take(self) -> list[D]:
        """All that was told since the last call, in its order."""
        with self._changed:
            taken, self._told = self._told, []
            return taken

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to take, or after a time."""
        with self._changed:
            self._changed.wait_for(lambda: self._told, timeout_s)

    def tell(self, word: BaseModel) -> None:
        """Say something to the node. Without it the process ends, and leaves others no reason of its own:
        nobody would hear of what it does."""
        with self._changed:
            try:
                self._connection.send_bytes(word.model_dump_json().encode())
            except OSError:
                os._exit(1)

    def commit(self) -> None:
        """From now on others count on this process: it leaves in an orderly way only. Before, a release ends
        it at once, even while it loads a model."""
        with self._changed:
            self._is_committed = True

    def _listen(self) -> None:
        while True:
            try:
                directive = self._directives.validate_json(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)
            with self._changed:
                self._told.append(directive)
                if isinstance(directive, Release):
                    self._release = directive
                    if not self._is_committed:
                        self.tell(Ended(reason="left", samples_done=0, node_s=0.0))
                        os._exit(0)
                self._changed.notify_all()
