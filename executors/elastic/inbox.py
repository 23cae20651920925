"""A worker process's end of the pipe to its node."""

import os
import threading
import time
from multiprocessing.connection import Connection

from executors.elastic.messages import DIRECTIVES, Joined, Progress
from executors.workers.membership import Membership
from executors.workers.messages import Ended, Failed, Release


class Inbox:
    """Knows the latest directive. When the node's process is gone, so is this one, whatever it is doing."""

    def __init__(self, connection: "Connection[bytes, bytes]", first: Membership) -> None:
        self._connection = connection
        self._latest: Membership | Release = first
        self._changed = threading.Condition()
        self._is_committed = False
        threading.Thread(target=self._listen, name="inbox", daemon=True).start()

    @property
    def latest(self) -> Membership | Release:
        """What the node has told last."""
        with self._changed:
            return self._latest

    def wait(self, seen: Membership | Release, timeout_s: float) -> Membership | Release:
        """Return the latest directive as soon as it is not `seen` any more, or after a time."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self._latest is seen and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            return self._latest

    def tell(self, word: Joined | Progress | Ended | Failed) -> None:
        """Say something to the node."""
        with self._changed:
            self._connection.send_bytes(word.model_dump_json().encode())

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
                self._latest = directive
                self._changed.notify_all()
                if isinstance(directive, Release) and not self._is_committed:
                    word = Ended(reason="left", samples_done=0, loss=None, node_s=0.0)
                    self._connection.send_bytes(word.model_dump_json().encode())
                    os._exit(0)
