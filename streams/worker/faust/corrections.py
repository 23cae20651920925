"""Corrections of the aiokafka clients of a process (aiokafka 0.14), which has no options for them.

`correct_clients` applies them: to writes on a broken connection, to offsets without a record, and to headers
that would make the consumer fail forever.
"""

from dataclasses import dataclass
from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import KafkaConnectionError
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy
from aiokafka.record.util import decode_varint

from streams.worker.intake import MAX_KEPT_HEADERS

send_of_library = AIOKafkaConnection.send


_FIRST_MAGIC_WITH_HEADERS = 2
_MOST_NAME_BYTES = 2_048
"""Most bytes that are read of a header's name that is not UTF-8: escaping millions of bytes takes a second. A
dead letter keeps no name of half this length."""
_CROWDED_HEADERS = 1_024
"""Number of headers above which a record cannot be an event."""
_LARGE_BATCH_BYTES = 256 * 1_024
"""Size below which a batch cannot have enough headers to take long."""
_UNREAD = ("", None)


def correct_clients() -> None:
    """Correct the aiokafka clients of this process. Call it before the first is created."""
    AIOKafkaConnection.send = send
    aiokafka.consumer.fetcher.MemoryRecords = memory_records
    aiokafka.consumer.fetcher.PartitionRecords = ContiguousRecords


def send(connection: AIOKafkaConnection, request: Any, expect_response: bool = True) -> Any:
    """Send a request, as `AIOKafkaConnection.send`; treat an error of uvloop as a broken connection.

    asyncio's own loop drops data written to a closed transport; uvloop raises RuntimeError. This ends
    aiokafka's metadata task, and its waiting callers then wait forever. If the broker failed at such a
    moment, a worker would continue to decide, but would never again commit or send a heartbeat.

    Raises:
        KafkaConnectionError: the connection is closed, or breaks with this.
    """
    try:
        return send_of_library(connection, request, expect_response)
    except RuntimeError as error:
        connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
        raise KafkaConnectionError(
            f"Connection at {connection.host}:{connection.port} broken: {error}"
        ) from error


@dataclass
class _ContiguousRange:
    """A range of a partition that was read without a jump."""

    from_offset: int
    """The offset after the last delivered record, or that of the first fetch."""
    next_offset: int
    """Offset at which the next fetch must begin for the range to continue."""


class ContiguousRecords(PartitionRecords):  # type: ignore[misc]
    """The records of one fetch, each with its `from_offset`: all offsets from there up to its own were
    fetched, and no other record of them is left to deliver.

    Markers of transactions, aborted records and compacted records leave holes between the offsets of
    delivered records. aiokafka skips them without notice, so a hole looks like lost records.

    A fetch that does not begin where the previous one ended (after a seek, or if the broker has deleted the
    offset) begins a new range.
    """

    _runs: dict[Any, _ContiguousRange] = {}  # noqa: RUF012 -- for the only consumer of the process, and used by its thread alone

    def __init__(self, tp: Any, records: Any, aborted: Any, fetch_offset: int, *others: Any) -> None:
        super().__init__(tp, records, aborted, fetch_offset, *others)
        run = self._runs.get(tp)
        if run is None or run.next_offset != fetch_offset:
            run = self._runs[tp] = _ContiguousRange(fetch_offset, fetch_offset)
        self._run = run

    def __next__(self) -> Any:
        try:
            record = super().__next__()
        finally:
            self._run.next_offset = self.next_fetch_offset
        record.from_offset = self._run.from_offset
        self._run.from_offset = record.offset + 1
        return record


def memory_records(data: bytes) -> Any:
    """Return aiokafka's reader of fetched records: the compiled one, unless a record's headers require a
    tolerant one.

    Kafka accepts any bytes as a header's name. aiokafka raises when it unpacks a batch with a name that is
    not UTF-8, and again after each restart, so one such record would stop its partition. The tolerant reader
    escapes the invalid bytes, and intake refuses the record. A header takes two bytes at least, so a record
    may have four million; beyond a limit they are counted instead of read.

    Both forms of `_read_msg` decode all names strictly before a record is delivered, so the one place to
    intervene is the class `MemoryRecords` that the fetcher calls. confluent-kafka decodes headers only on
    request, but Faust has no consumer based on it.
    """
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
