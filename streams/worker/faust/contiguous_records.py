"""Which offsets hold no record, as aiokafka finds out when it reads.

Markers that end a transaction, aborted records and records that were compacted away leave holes between the
offsets of delivered records. aiokafka passes over them in silence, so a hole looks like records that
were lost. Here each record also carries `from_offset`: all offsets from there up to its own were fetched, and
no other record in them is left to deliver.
"""

from dataclasses import dataclass
from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.consumer.fetcher import PartitionRecords


@dataclass
class _Run:
    """A stretch of a partition that was read without a jump."""

    from_offset: int
    """The offset after the last delivered record, or that of the first fetch."""
    next_offset: int
    """Offset at which the next fetch must begin for the stretch to go on."""


class ContiguousRecords(PartitionRecords):  # type: ignore[misc]
    """The records of one fetch, each with its `from_offset`.

    A fetch that does not begin where the one before it ended (after a seek, or where the broker has deleted
    the offset) begins a new stretch.
    """

    _runs: dict[Any, _Run] = {}  # noqa: RUF012 -- of this process's one consumer, and used by its thread alone

    def __init__(self, tp: Any, records: Any, aborted: Any, fetch_offset: int, *others: Any) -> None:
        super().__init__(tp, records, aborted, fetch_offset, *others)
        run = self._runs.get(tp)
        if run is None or run.next_offset != fetch_offset:
            run = self._runs[tp] = _Run(fetch_offset, fetch_offset)
        self._run = run

    def __next__(self) -> Any:
        try:
            record = super().__next__()
        finally:
            self._run.next_offset = self.next_fetch_offset
        record.from_offset = self._run.from_offset
        self._run.from_offset = record.offset + 1
        return record


def install() -> None:
    """Have every aiokafka consumer of this process read in this way."""
    aiokafka.consumer.fetcher.PartitionRecords = ContiguousRecords
