"""Reading records whose header names are not UTF-8, on which aiokafka's consumer would fail for ever.

Kafka takes any bytes as a header's name. aiokafka raises as it unpacks the batch, again after each restart,
so that one such record would stop its whole partition. Here the name is read with its odd bytes escaped, and
intake gets the record to refuse.
"""

from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.legacy_records import LegacyRecordBatch
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy

_FIRST_MAGIC_WITH_HEADERS = 2
_MOST_NAME_BYTES = 2_048
"""Of a header's name that is not UTF-8: to escape millions of bytes takes a second, and intake refuses a
record whose headers have so long a name."""


def install() -> None:
    """Have every aiokafka consumer of this process read in this way."""
    aiokafka.consumer.fetcher.MemoryRecords = memory_records


def memory_records(data: bytes) -> Any:
    """aiokafka's reader of fetched records: the compiled one, unless a header's name asks for the other."""
    trial = MemoryRecords(data)
    try:
        while trial.has_next():
            for _ in trial.next_batch():
                pass
    except UnicodeDecodeError:
        return _TolerantRecords(data)
    except Exception:
        # Whatever else is wrong is for the fetcher to find, as ever.
        return MemoryRecords(data)
    return MemoryRecords(data)


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

    def _read_msg(self) -> Any:
        if not isinstance(self._buffer, _Buffer):
            self._buffer = _Buffer(self._buffer)
        return super()._read_msg()


class _Buffer(bytearray):
    def __getitem__(self, place: Any) -> Any:
        part = super().__getitem__(place)
        return _Name(part) if isinstance(place, slice) else part


class _Name(bytes):
    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        return super().decode(encoding, errors)
