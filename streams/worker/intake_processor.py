"""The processor of input records: it queues their events and sends them to the ledger."""

from collections.abc import AsyncIterable

from schemas.fleet import FleetEvent, NodeHeartbeat
from streams.kafka.records import ReadRecord
from streams.worker.flow import Flow
from streams.worker.intake import Accepted, Claim
from streams.worker.intake_queue import Waiting
from streams.worker.node_watch import NodeWatch


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
