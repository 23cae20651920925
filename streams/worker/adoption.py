"""Adoption of the newest rules: once a cell's ledger is folded, the worker writes an event by which they
apply.

Before that, the decisions of the old rules are published and covered by a snapshot, and the state from which
the new rules start is stored permanently; the broker has confirmed both before the ledger names the state.
The event is valid if no other event of the cell entered the ledger meanwhile; otherwise it changes nothing
and is tried again. For this to terminate, intake sends nothing to a partition while one of its cells waits
for an adoption.
"""

import asyncio

from schemas.codec import Envelope, rfc3339
from schemas.rules import RulesAdopted
from schemas.topics import RULES_STATES, STATE_DIGEST_HEADER, topic_name
from streams.cell.rules import state_digest
from streams.cell.state_machine import Cell, compress, layout_of
from streams.kafka.publisher import Publisher
from streams.kafka.records import SentRecord
from streams.worker.cells import Cells
from streams.worker.flow import Flow
from streams.worker.processors import CellProcessor

SOURCE = "millrace/worker"
"""The CloudEvents source of adoptions."""

_LOOK_EVERY_S = 0.1


class Adoption:
    """Adopts the newest rules for the cells that this worker folds."""

    def __init__(
        self, flow: Flow, cells: Cells, processor: CellProcessor, publisher: Publisher, topic_prefix: str
    ) -> None:
        self._flow = flow
        self._intake = flow.intake
        self._rules = flow.intake.book.newest
        self._cells = cells
        self._processor = processor
        self._publisher = publisher
        self._states = topic_name(topic_prefix, RULES_STATES)
        self._tried: dict[str, int] = {}
        """Ledger offset of the last attempt, by cell; the attempt has its effect when it is folded."""

    async def run(self) -> None:
        """Adopt the rules for each cell that is ready. Never returns.

        Raises:
            KafkaException: the broker does not confirm a record.
            SuspendedError: see `CellProcessor.snapshot`.
            MissingRulesError: a cell has newer rules than this worker.
        """
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for cell in self._ready():
                await self._adopt(cell)

    def _ready(self) -> list[Cell]:
        """Return the cells that can adopt the newest rules now."""
        ready, waiting = [], set()
        for name in sorted(self._intake.cells):
            partition = self._intake.partition_of(name)
            folded = self._flow.is_folded(partition)
            # The snapshots of a new partition may not all be read yet.
            cell = self._cells.cell(name) if folded or partition in self._flow.held else None
            if cell is not None and cell.awaits_rules:
                waiting.add(partition)
                if folded and cell.offset >= self._tried.get(name, -1):
                    ready.append(cell)
        self._flow.held = waiting
        return ready

    async def _adopt(self, cell: Cell) -> None:
        offset, previous = cell.offset, cell.rules
        # The decisions of the old rules must be published, so that they are not made again.
        await self._processor.snapshot()
        if cell.offset != offset or previous is None:
            return
        packed = cell.packed()
        digest, partition = state_digest(packed), self._intake.partition_of(cell.name)
        state = await asyncio.to_thread(compress, packed)
        headers = [(STATE_DIGEST_HEADER, digest.encode())]
        await (
            await self._publisher.send(
                SentRecord(self._states, cell.name.encode(), state, headers, partition)
            )
        )
        adopted = RulesAdopted(
            cell=cell.name,
            rules=self._rules.version,
            previous_rules=previous,
            release=self._rules.release,
            state_offset=offset,
            state_digest=digest,
            state_layout=layout_of(packed),
        )
        id = f"rules-{adopted.rules}-{offset}"
        envelope = Envelope(id, SOURCE, rfc3339(int(self._flow.clocks.unix_s() * 1_000)), adopted)
        self._tried[cell.name] = await (await self._publisher.send(self._intake.ledger_record(envelope)))
