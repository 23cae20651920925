"""The writing of snapshots, in an order that makes a crash harmless."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from streams.kafka.publisher import Publisher
from streams.kafka.records import SentRecord
from streams.worker.cells import SnapshotTable
from streams.worker.partition import Capture
from streams.worker.suspension import Suspension


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
