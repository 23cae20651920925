"""Detection of offsets without a record, as aiokafka reads.

Markers of transactions, aborted records and compacted records leave holes between the offsets of delivered
records. aiokafka skips them without notice, so a hole looks like lost records. Here each record also has
`from_offset`: all offsets from there up to its own were fetched, and no other record of them is left to
deliver.
"""

from dataclasses import dataclass
from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.consumer.fetcher import PartitionRecords


@dataclass
class _Run:
    """A range of a partition that was read without a jump."""

    from_offset: int
    """The offset after the last delivered record, or that of the first fetch."""
    next_offset: int
    """Offset at which the next fetch must begin for the range to continue."""


class ContiguousRecords(PartitionRecords):  # type: ignore[misc]
    """The records of one fetch, each with its `from_offset`.

    A fetch that does not begin where the previous one ended (after a seek, or if the broker has deleted the
    offset) begins a new range.
    """

    _runs: dict[Any, _Run] = {}  # noqa: RUF012 -- for the only consumer of the process, and used by its thread alone

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
    """Make every aiokafka consumer of this process read in this way."""
    aiokafka.consumer.fetcher.PartitionRecords = ContiguousRecords
