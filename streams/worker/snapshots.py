"""The writing of snapshots, in an order that makes a crash harmless; not after a suspension of the process,
since another worker may then own its cells."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streams.kafka.publisher import Publisher
from streams.kafka.records import SentRecord
from streams.worker.cells import Capture, SnapshotTable


class SuspendedError(Exception):
    """The process was suspended for so long that another worker may own its cells."""


class Suspension:
    """Detects a suspension by a timestamp that is renewed regularly."""

    def __init__(self, limit_s: float, monotonic_s: Callable[[], float]) -> None:
        """Begin to watch. `limit_s` is the longest suspension after which the worker still owns its cells."""
        self._limit_s = limit_s
        self._monotonic_s = monotonic_s
        self._renewed_s = monotonic_s()

    async def watch(self, every_s: float) -> None:
        """Note that the process runs. Never returns.

        Raises:
            SuspendedError: see `refuse`.
        """
        while True:
            await asyncio.sleep(every_s)
            self.refuse()
            self._renewed_s = self._monotonic_s()

    def refuse(self) -> None:
        """Check that the process was not suspended beyond the limit.

        Raises:
            SuspendedError: it was.
        """
        silent_s = self._monotonic_s() - self._renewed_s
        if silent_s > self._limit_s:
            raise SuspendedError(
                f"the process was suspended for {silent_s:.1f} s, and another worker may own its cells: "
                "start it again"
            )


@dataclass(frozen=True)
class Packed:
    """Snapshots of cells, and their coverages."""

    snapshots: list[SentRecord]
    coverages: list[SentRecord]


class Snapshots:
    """Writes the snapshots of a worker's cells."""

    def __init__(self, table: SnapshotTable, publisher: Publisher, suspension: Suspension) -> None:
        self._table = table
        self._publisher = publisher
        self._suspension = suspension

    async def pack(self, captures: Mapping[int, Capture]) -> Packed:
        """Compress captures of partitions, in a thread."""
        packed = Packed([], [])
        for partition, capture in captures.items():
            *cells, coverage = [
                SentRecord(self._table.topic, key, value, partition=partition)
                for key, value in await asyncio.to_thread(capture.records)
            ]
            packed.snapshots.extend(cells)
            packed.coverages.append(coverage)
        return packed

    async def write(self, packed: Packed) -> None:
        """Write snapshots, and wait until the broker has confirmed them.

        Raises:
            KafkaException: the broker does not confirm a record.
            SuspendedError: this process was suspended for too long to own its cells.
        """
        self._suspension.refuse()
        await self._confirm(packed.snapshots)
        self._suspension.refuse()
        # After the snapshots: coverage of a refused snapshot would make every later start fail.
        await self._confirm(packed.coverages)
        for record in (*packed.snapshots, *packed.coverages):
            assert record.key is not None
            assert record.value is not None
            self._table.data[record.key] = record.value

    async def _confirm(self, records: list[SentRecord]) -> None:
        """Send records and wait for their confirmation, which the table itself does not offer."""
        for confirmation in [await self._publisher.send(record) for record in records]:
            await confirmation
