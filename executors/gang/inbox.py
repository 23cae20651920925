"""The directives of a node to one of its ranks."""

import os
import threading
from multiprocessing.connection import Connection

from pydantic import BaseModel

from executors.gang.link import NodeLink
from executors.gang.membership import Membership
from executors.gang.messages import DIRECTIVES, Directive, Ended, Instruction, Release


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
        """Send a message to the node."""
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

    def take_instructions(self) -> list[Instruction]:
        """Return the instructions since the last call, in order."""
        with self._changed:
            self._has_news = False
            taken, self._instructions = self._instructions, []
            return taken

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
