"""Adoption of the newest rules: when a cell's ledger is folded, the worker writes that they apply from then
on.

Before that, the decisions of the old rules are published and in a snapshot, and the state that the new ones
start from is stored permanently; the broker has confirmed both before the ledger names it. The event is valid
if no other event of the cell entered the ledger meanwhile; otherwise it changes nothing and is tried again.
So that this terminates, intake sends nothing to a partition while one of its cells waits for an adoption.
"""

import asyncio

from schemas.codec import Envelope, rfc3339
from schemas.rules import RulesAdopted
from schemas.topics import RULES_STATES, STATE_DIGEST_HEADER, topic_name
from streams.cell.cell import Cell, compress, layout_of
from streams.cell.rules import state_digest
from streams.kafka.publisher import Publisher
from streams.kafka.records import SentRecord
from streams.worker.cell_processor import CellProcessor
from streams.worker.cells import Cells
from streams.worker.flow import Flow

SOURCE = "millrace/worker"
"""The CloudEvents source of adoptions."""

_LOOK_EVERY_S = 0.1


class Adoption:
    """Puts the cells that this worker folds under the newest rules."""

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
        """By cell, the ledger offset of the last attempt: its effect is known when it is folded."""

    async def run(self) -> None:
        """Look for cells that are ready again and again. Never returns.

        Raises:
            KafkaException: if the broker does not take a record.
            SuspendedError: see `CellProcessor.snapshot`.
            MissingRulesError: if a cell is under newer rules than this worker has.
        """
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for cell in self._ready():
                await self._adopt(cell)

    def _ready(self) -> list[Cell]:
        """The cells that can come under the newest rules now."""
        ready, waiting = [], set()
        for name in sorted(self._intake.cells):
            partition = self._intake.partition_of(name)
            folded = self._flow.is_folded(partition)
            # The snapshots of a partition that was just assigned may not all be read yet.
            cell = self._cells.cell(name) if folded or partition in self._flow.held else None
            if cell is not None and cell.awaits_rules:
                waiting.add(partition)
                if folded and cell.offset >= self._tried.get(name, -1):
                    ready.append(cell)
        self._flow.held = waiting
        return ready

    async def _adopt(self, cell: Cell) -> None:
        offset, previous = cell.offset, cell.rules
        # The decisions of the old rules are published, and need not be made again.
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
