"""The processors of a worker: intake's, which passes input records to the ledger, and that of ledger records.

The order of the second makes a crash harmless: the broker confirms the decisions, then the snapshots are
written and confirmed, and only then the ledger records are acknowledged. Folding continues meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterable

from schemas.codec import InvalidRecordError
from schemas.fleet import FleetEvent, NodeHeartbeat
from streams.cell.rules import RulesError
from streams.kafka.records import Partition, ReadRecord
from streams.worker.cells import Cells
from streams.worker.flow import Flow
from streams.worker.intake import Accepted, Claim
from streams.worker.intake_queue import Waiting
from streams.worker.node_watch import NodeWatch
from streams.worker.publication import Outbox
from streams.worker.snapshots import Snapshots


class IntakeProcessor:
    """Passes records from the input topics to the ledger, or to the dead letters."""

    def __init__(self, flow: Flow, nodes: NodeWatch) -> None:
        self._flow = flow
        self._intake = flow.intake
        self._nodes = nodes

    async def run(self, records: AsyncIterable[ReadRecord]) -> None:
        """Queue the event of every input record. Ends with `records`."""
        async for record in records:
            if self._flow.read(record):
                self._nodes.read(record)
                await self._queue(record)

    async def send_on(self) -> None:
        """Send queued events to the ledger, as fast as their cells fold them. Never returns."""
        while True:
            await self._send(await self._flow.next(self._nodes.may_tick))

    async def _queue(self, record: ReadRecord) -> None:
        """Queue a record: by its claim alone, which is cheaper, while many records are left to read."""
        accepted = None
        claim = self._intake.claim(record) if self._flow.is_behind() else None
        if claim is None or claim.type is NodeHeartbeat:
            accepted = await self._admit(record)
            if accepted is None:
                return
            claim = Claim.of(accepted.event)
        if claim.node is not None and not self._nodes.may_have(claim.cell, claim.node):
            reason = f"cell {claim.cell} has no node {claim.node}"
            await self._flow.refuse(record, self._intake.refuse(record, reason))
        elif accepted is not None and isinstance(accepted.event, NodeHeartbeat):
            self._nodes.heartbeat(accepted.event)
            self._flow.done(record)
        else:
            self._flow.wait(claim, record, accepted)

    async def _send(self, waiting: Waiting) -> None:
        accepted = waiting.accepted
        if waiting.source is not None:
            accepted = accepted or await self._admit(waiting.source)
            if accepted is not None and isinstance(accepted.event, FleetEvent):
                # The report itself shows its cell that the node is online.
                self._nodes.note_sign(accepted.event.cell, accepted.event.node)
        if accepted is not None:
            await self._flow.send(waiting, accepted)

    async def _admit(self, record: ReadRecord) -> Accepted | None:
        """Return the event of an input record; None if it was sent to the dead letters."""
        admitted = self._intake.admit(record)
        if isinstance(admitted, Accepted):
            return admitted
        await self._flow.refuse(record, admitted)
        return None


class CellProcessor:
    """Folds ledger records into their cells, and publishes the decisions."""

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
        """Number of folded records that are not secured."""
        self._last_offsets: dict[Partition, int] = {}
        """Last offset of these records, by partition."""
        self._folding = asyncio.Lock()
        self._snapshotting = asyncio.Lock()
        self._many_events = asyncio.Event()

    async def run(self, records: AsyncIterable[ReadRecord]) -> None:
        """Fold every record of the ledger, in order. Ends with `records`.

        Raises:
            LedgerGapError: events are missing.
            RulesError: the rules of an event are not available.
            ValueError: a snapshot is of another version.
        """
        async for record in records:
            assignment = self._assignments
            try:
                await self._cells.until_ready(record)
                if assignment != self._assignments:
                    continue  # the partition was reassigned meanwhile: the record will be delivered again
                await self._fold(record)
            except RulesError:
                # The decisions so far are secured: a worker that has the rules continues from there.
                await self.snapshot()
                raise
            if self._events >= self._snapshot_every_events:
                self._many_events.set()
            if self._events >= 2 * self._snapshot_every_events:
                await self.snapshot()

    async def snapshot_regularly(self, every_s: float) -> None:
        """Write snapshots after a number of events or seconds, whichever is first. Never returns."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._many_events.wait(), every_s)
            self._many_events.clear()
            await self.snapshot()

    async def snapshot(self) -> None:
        """Secure everything folded so far, then acknowledge it.

        Raises:
            KafkaException: the broker does not confirm a record.
            SuspendedError: this process was suspended for too long to own its cells.
        """
        async with self._snapshotting:
            async with self._folding:
                folded, self._last_offsets, self._events = self._last_offsets, {}, 0
                if not folded:
                    return
                confirmations = self._outbox.drain_confirmations()
                captures = self._cells.capture(sorted(place.partition for place in folded))
            packed = await self._snapshots.pack(captures)
            for confirmation in confirmations:
                await confirmation
            await self._snapshots.write(packed)
            self._flow.secured(folded)

    async def release(self) -> None:
        """Forget every cell: partitions are reassigned, and restored from the snapshots.

        Events that are not yet acknowledged will be delivered again, here or elsewhere.
        """
        self._assignments += 1
        async with self._folding:
            self._cells.release()
            self._outbox.release()
            self._last_offsets, self._events = {}, 0

    async def _fold(self, record: ReadRecord) -> None:
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
