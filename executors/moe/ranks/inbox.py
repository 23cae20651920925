"""A rank process's end of the pipe to its node."""

import os
import threading
from multiprocessing.connection import Connection

from executors.moe.ranks.messages import DIRECTIVES, Joined, Placed, Progress, Told
from executors.workers.messages import Ended, Failed, Release


class Inbox:
    """Knows what the node has told. When the node's process is gone, so is this one, whatever it is doing."""

    def __init__(self, connection: "Connection[bytes, bytes]") -> None:
        self._connection = connection
        self._changed = threading.Condition()
        self._release: Release | None = None
        self._placements: list[Placed] = []
        self._is_committed = False
        threading.Thread(target=self._listen, name="inbox", daemon=True).start()

    @property
    def release(self) -> Release | None:
        """Whether the rank is to end."""
        with self._changed:
            return self._release

    def take_placements(self) -> list[Placed]:
        """What was told since the last call, in its order."""
        with self._changed:
            taken, self._placements = self._placements, []
            return taken

    def wait(self, timeout_s: float) -> None:
        """Return when the node has told something, or after a time."""
        with self._changed:
            if self._release is None and not self._placements:
                self._changed.wait(timeout_s)

    def tell(self, word: Joined | Progress | Told | Ended | Failed) -> None:
        """Say something to the node. Without it the process ends: nobody would hear of what it does."""
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
                directive = DIRECTIVES.validate_json(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)
            with self._changed:
                if isinstance(directive, Placed):
                    self._placements.append(directive)
                else:
                    self._release = directive
                self._changed.notify_all()
                if self._release is not None and not self._is_committed:
                    word = Ended(reason="stopped", samples_done=0, node_s=0.0)
                    self._connection.send_bytes(word.model_dump_json().encode())
                    os._exit(0)
