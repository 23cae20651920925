"""Ranks without processes, for histories of a node: the history decides what they do."""

from typing import Any, ClassVar

from pydantic import BaseModel

from executors.gang.messages import Ended, Release


class LightRank:
    """Stands in for a `ForkedProcess`."""

    all: ClassVar[list["LightRank"]] = []
    """By their start."""
    has_room: ClassVar[bool] = True
    """Whether the machine has room for another process."""
    obeys: ClassVar[bool] = False
    """Whether ranks end at once when they are released."""

    def __init__(self, work: str, order: Any, *_: object) -> None:
        if not LightRank.has_room:
            raise OSError("no room")
        self.order, self.is_alive, self.exit_code, self.pid = order, True, None, 0
        self.is_indexer = "indexer" in work
        self.directives: list[Any] = []
        self.outbox: list[Any] = []
        LightRank.all.append(self)

    def send(self, directive: BaseModel) -> None:
        self.directives.append(directive)
        if LightRank.obeys and self.is_alive and isinstance(directive, Release):
            self.emit(Ended(reason="stopped", samples_done=0, node_s=1.0))
            self.end()

    def emit(self, *messages: BaseModel) -> None:
        self.outbox += messages

    def messages(self) -> list[Any]:
        emitted, self.outbox = self.outbox, []
        return emitted

    def end(self, exit_code: int = 0) -> None:
        self.is_alive, self.exit_code = False, exit_code

    def kill(self) -> None:
        if self.is_alive:
            self.end(-9)

    def close(self) -> None:
        """Release nothing."""
