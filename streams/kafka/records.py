"""Kafka records as plain values, for code that is tested without a broker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

_MURMUR2_SEED, _MURMUR2_FACTOR, _UINT32 = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF

ReadHeaders = Sequence[tuple[str, bytes | None]]
SentHeaders = list[tuple[str, bytes]]


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record that was read, and not validated."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: ReadHeaders = ()
    is_broker_time: bool = False
    """Whether the broker set the timestamp when it appended the record."""
    from_offset: int | None = None
    """Offset from which no other record is left to read up to this one; None if the reader has no such
    information."""

    @property
    def place(self) -> Partition:
        """Partition of the record."""
        return Partition(self.topic, self.partition)

    @property
    def size_bytes(self) -> int:
        """Size of key, value and headers."""
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
        """Size of key, value and headers."""
        return _size_bytes(self)


def _size_bytes(record: ReadRecord | SentRecord) -> int:
    size_bytes = len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size_bytes += len(name) + len(value or b"")
    return size_bytes


def read_record(message: Any) -> ReadRecord:
    """Return the record of a message without an error."""
    _, timestamp_ms = message.timestamp()
    return ReadRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms if timestamp_ms > 0 else None,
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
    )


def _headers(message: Any) -> ReadHeaders:
    """Return the headers; empty if a name is not UTF-8, which the client cannot read."""
    try:
        return cast(ReadHeaders, tuple(message.headers() or ()))
    except (UnicodeDecodeError, SystemError):
        return ()


@lru_cache(maxsize=4_096)
def key_partition(key: str, partitions: int) -> int:
    """Return the partition of a key by Kafka's default partitioner.

    So a producer in any language that has this default reaches a node (in `commands`) or a cell (in all other
    topics) by key alone.

    Raises:
        ValueError: `partitions` is below 1.
    """
    if partitions < 1:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    return (_murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Return the hash of Kafka's default partitioner.

    MurmurHash2 (Austin Appleby; 32 bits, little-endian) with the seed of `Utils.murmur2` in Kafka's clients.
    """
    hashed = _MURMUR2_SEED ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MURMUR2_FACTOR & _UINT32
        word = (word ^ word >> 24) * _MURMUR2_FACTOR & _UINT32
        hashed = hashed * _MURMUR2_FACTOR & _UINT32 ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _MURMUR2_FACTOR & _UINT32
    hashed = (hashed ^ hashed >> 13) * _MURMUR2_FACTOR & _UINT32
    return hashed ^ hashed >> 15
