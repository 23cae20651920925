"""Nodes of a deployment that have come online since its start."""

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from infra.log.reader import LogReader
from infra.log.target import Target
from infra.text import first_of
from schemas.codec import InvalidRecordError, decode_event
from schemas.fleet import FLEET, SignOfLife
from schemas.kafka_connection import KafkaConnection
from streams.kafka.reader import ReadError

_SHOWN_NODES = 6


class NodesAwaited:
    """Reads the reports of nodes until each node has sent one."""

    def __init__(self, kafka: KafkaConnection, prefix: str, nodes: set[tuple[str, str]]) -> None:
        """Await nodes, each named with its cell; earlier reports do not count.

        Raises:
            ReadError: the broker does not answer.
        """
        target = Target(kafka, prefix)
        self._left = set(nodes)
        self._all = len(nodes)
        self._reader = LogReader(target, [target.topic(FLEET.name)], "end") if nodes else None

    @property
    def awaited(self) -> str:
        """Text about the nodes that are awaited; empty without any."""
        if not self._left:
            return ""
        return f"{first_of(sorted(node for _, node in self._left), _SHOWN_NODES)} to come online"

    def news(self) -> Iterator[str]:
        """Yield a line for each node that has come online since the last call."""
        if self._reader is None:
            return
        with suppress(ReadError):  # the broker restarts
            for record in self._reader.poll(0.0):
                with suppress(InvalidRecordError):
                    event = decode_event(record.value, record.headers).event
                    if isinstance(event, SignOfLife) and (event.cell, event.node) in self._left:
                        self._left.remove((event.cell, event.node))
                        yield f"{event.node} is online, {self._all - len(self._left)} of {self._all} nodes"
        if not self._left:
            self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.__exit__(kind, error, trace)
            self._reader = None
