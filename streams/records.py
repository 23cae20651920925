"""Kafka records as plain values, so that what is read and what is sent can be decided without a broker."""

from collections.abc import Sequence
from dataclasses import dataclass, field

ReadHeaders = Sequence[tuple[str, bytes | None]]
SentHeaders = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it was read, before anyone has judged it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: ReadHeaders = ()

    @property
    def size_bytes(self) -> int:
        """Of key, value and headers."""
        return _size_bytes(self)


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record to send. Without a partition, the hash of the key chooses one."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: SentHeaders = field(default_factory=list)
    partition: int | None = None

    @property
    def size_bytes(self) -> int:
        """Of key, value and headers."""
        return _size_bytes(self)


def _size_bytes(record: ReadRecord | SentRecord) -> int:
    size_bytes = len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size_bytes += len(name) + len(value or b"")
    return size_bytes
