"""Cells: ledger records in, decisions out, and snapshots between.

The order makes a crash harmless: decisions are confirmed by the broker, then the snapshots are written and
confirmed, and only then the ledger records are acknowledged. Folding continues meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterable

from schemas.codec import InvalidRecordError
from streams.cell.rules import RulesError
from streams.kafka.records import Place, ReadRecord
from streams.worker.cells import Cells
from streams.worker.flow import Flow
from streams.worker.outbox import Outbox
from streams.worker.snapshots import Snapshots


class CellProcessor:
    """Takes records from the ledger through their cells, and publishes what these decide."""

    def __init__(
        self, flow: Flow, cells: Cells, outbox: Outbox, snapshots: Snapshots, snapshot_every_events: int
    ) -> None:
        self._flow = flow
        self._cells = cells
        self._outbox = outbox
        self._snapshots = snapshots
        self._snapshot_every_events = snapshot_every_events
        self._assignments = 0
        self._events = 0
        """Number of records that are folded and not secured."""
        self._last_offsets: dict[Place, int] = {}
        """Their last offset in each partition."""
        self._folding = asyncio.Lock()
        self._snapshotting = asyncio.Lock()
        self._many_events = asyncio.Event()

    async def run(self, records: AsyncIterable[ReadRecord]) -> None:
        """Fold every record of the ledger, in order. Ends with `records`.

        Raises:
            LedgerGapError: if events are missing.
            RulesError: if the rules of an event are not at hand.
            ValueError: if a snapshot is of another version.
        """
        async for record in records:
            assignment = self._assignments
            try:
                await self._cells.until_ready(record)
                if assignment != self._assignments:
                    continue  # while it waited, its partition was assigned anew: it will be delivered again
                await self._take(record)
            except RulesError:
                # What could be decided is secured: who has the rules goes on from there.
                await self.snapshot()
                raise
            if self._events >= self._snapshot_every_events:
                self._many_events.set()
            if self._events >= 2 * self._snapshot_every_events:
                await self.snapshot()

    async def snapshot_regularly(self, every_s: float) -> None:
        """Write snapshots every so many events or seconds, whichever is first. Never returns."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._many_events.wait(), every_s)
            self._many_events.clear()
            await self.snapshot()

    async def snapshot(self) -> None:
        """Secure everything folded so far, then acknowledge it.

        Raises:
            KafkaException: if the broker does not confirm a record.
            SuspendedError: if this process stood still for too long to be trusted.
        """
        async with self._snapshotting:
            async with self._folding:
                folded, self._last_offsets, self._events = self._last_offsets, {}, 0
                if not folded:
                    return
                confirmations = self._outbox.take()
                captures = self._cells.capture(sorted(place.partition for place in folded))
            packed = await self._snapshots.pack(captures)
            for confirmation in confirmations:
                await confirmation
            await self._snapshots.write(packed)
            self._flow.secured(folded)

    async def release(self) -> None:
        """Forget every cell: partitions are assigned anew, and restored from the snapshots.

        Events that are not yet acknowledged will be delivered again, here or elsewhere.
        """
        self._assignments += 1
        async with self._folding:
            self._cells.release()
            self._outbox.release()
            self._last_offsets, self._events = {}, 0

    async def _take(self, record: ReadRecord) -> None:
        async with self._folding:
            began_s = self._flow.clocks.monotonic_s()
            try:
                cell, decisions = self._cells.fold(record, self._flow.written(record))
            except InvalidRecordError as refusal:
                await self._outbox.refuse(record, str(refusal))
            else:
                await self._outbox.publish(cell, decisions)
            self._events += 1
            self._last_offsets[record.place] = record.offset
            self._flow.folded(record, self._flow.clocks.monotonic_s() - began_s)
