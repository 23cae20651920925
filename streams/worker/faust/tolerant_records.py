"""Reading of records whose headers would make aiokafka's consumer fail forever, or block for seconds.

Kafka accepts any bytes as a header's name. aiokafka raises when it unpacks a batch with a name that is not
UTF-8, and again after each restart, so one such record would stop its partition. Here the invalid bytes of
the name are escaped, and intake refuses the record.

A header takes two bytes at least, so a record may have four million. Intake refuses more than a few; beyond a
limit they are counted here instead of read.

Neither library has an option in place of this module (aiokafka 0.14, confluent-kafka 2.16):

- In aiokafka, `_DefaultRecordBatchPy._read_msg` and its compiled form decode each name as strict UTF-8, and
  read all headers of a record before it is delivered. The consumer has no setting and no deserializer for
  headers; the one place to intervene is the class `MemoryRecords` that its fetcher calls.
- confluent-kafka decodes headers only on request, so an invalid name stops nothing (the solver and the
readers
  of logs rely on that). But Faust has no consumer based on it.
- The broker does not validate headers, and limits a record by its bytes alone.
"""

from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy
from aiokafka.record.util import decode_varint

from streams.worker.dead_letters import MAX_KEPT_HEADERS

_FIRST_MAGIC_WITH_HEADERS = 2
_MOST_NAME_BYTES = 2_048
"""Most bytes that are read of a header's name that is not UTF-8: escaping millions of bytes takes a second. A
dead letter keeps no name of half this length."""
_CROWDED_HEADERS = 1_024
"""Number of headers above which a record cannot be an event."""
_LARGE_BATCH_BYTES = 256 * 1_024
"""Size below which a batch cannot have enough headers to take long."""
_UNREAD = ("", None)


def install() -> None:
    """Make every aiokafka consumer of this process read in this way."""
    aiokafka.consumer.fetcher.MemoryRecords = memory_records


def memory_records(data: bytes) -> Any:
    """Return aiokafka's reader of fetched records: the compiled one, unless a record's headers require this
    one."""
    try:
        if _is_crowded(data):
            return _TolerantRecords(data)
        trial = MemoryRecords(data)
        while trial.has_next():
            for _ in trial.next_batch():
                pass
    except UnicodeDecodeError:
        return _TolerantRecords(data)
    except Exception:
        # Any other fault is left to the fetcher.
        return MemoryRecords(data)
    return MemoryRecords(data)


def _is_crowded(data: bytes) -> bool:
    """Return whether a record has too many headers to read them all."""
    if len(data) < _LARGE_BATCH_BYTES:
        return False
    records = _TolerantRecords(data)
    while records.has_next():
        batch = records.next_batch()
        if isinstance(batch, _TolerantBatch) and batch.is_crowded():
            return True
    return False


class _TolerantRecords(_MemoryRecordsPy):  # type: ignore[misc]
    def next_batch(self) -> Any:
        batch = self._next_slice
        if batch is None:
            return None
        self._cache_next()
        magic = batch[self.MAGIC_OFFSET]
        return (
            _TolerantBatch(batch) if magic >= _FIRST_MAGIC_WITH_HEADERS else LegacyRecordBatch(batch, magic)
        )


class _TolerantBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    _buffer: Any
    _pos: int

    def is_crowded(self) -> bool:
        """Return whether one of the records has too many headers. Input topics hold no compressed batches."""
        if len(self._buffer) < _LARGE_BATCH_BYTES or self.compression_type != self.CODEC_NONE:
            return False
        place = self._pos
        for _ in range(self._num_records):
            length, start = decode_varint(self._buffer, place)
            if length > 2 * _CROWDED_HEADERS and _Front(self._buffer, place).is_crowded:
                return True
            place = start + length
        return False

    def _read_msg(self) -> Any:
        if not isinstance(self._buffer, _Buffer):
            self._buffer = _Buffer(self._buffer)
        front = _Front(self._buffer.plain, self._pos)
        if not front.is_crowded:
            return super()._read_msg()
        self._pos = front.end
        appended = self.timestamp_type == self.LOG_APPEND_TIME
        return _DefaultRecordPy(
            self.base_offset + front.offset_delta,
            self.max_timestamp if appended else self.first_timestamp + front.timestamp_delta,
            self.timestamp_type,
            front.key,
            front.value,
            front.first_headers() + [_UNREAD] * (front.header_count - MAX_KEPT_HEADERS),
        )


class _Front:
    """The fields of a record before its headers, in the order of Kafka's format."""

    def __init__(self, buffer: bytearray, place: int) -> None:
        self._buffer, self._place = buffer, place
        length = self._number()
        self.end = self._place + length
        self._number()  # attributes, which are unused
        self.timestamp_delta = self._number()
        self.offset_delta = self._number()
        self.key = self._bytes()
        self.value = self._bytes()
        self.header_count = self._number()

    @property
    def is_crowded(self) -> bool:
        """Whether it has too many headers, and room for them; other records are left to the fetcher."""
        room = min(self.end, len(self._buffer)) - self._place
        return _CROWDED_HEADERS < self.header_count <= room // 2

    def first_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the first headers, which a dead letter may keep."""
        return [(_Name(self._bytes() or b"").decode(), self._bytes()) for _ in range(MAX_KEPT_HEADERS)]

    def _number(self) -> int:
        number, self._place = decode_varint(self._buffer, self._place)
        return int(number)

    def _bytes(self) -> bytes | None:
        length = self._number()
        if length < 0:
            return None
        start, self._place = self._place, self._place + length
        return bytes(self._buffer[start : self._place])


class _Buffer(bytearray):
    def __init__(self, plain: bytearray) -> None:
        super().__init__(plain)
        self.plain = plain

    def __getitem__(self, place: Any) -> Any:
        part = super().__getitem__(place)
        return _Name(part) if isinstance(place, slice) else part


class _Name(bytes):
    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        try:
            return super().decode(encoding)
        except UnicodeDecodeError:
            return super().__getitem__(slice(_MOST_NAME_BYTES)).decode(encoding, errors)
