"""The sending of decisions: the log, commands, views, and dead letters of the ledger."""

from collections.abc import Callable, Collection

from schemas.codec import Decision
from schemas.topics import LEDGER, dead_letter_name, topic_name
from streams.cell.cell import Cell
from streams.kafka.publisher import Confirmation, Publisher
from streams.kafka.records import ReadRecord, SentRecord
from streams.worker.dead_letters import dead_letter
from streams.worker.fault_log import FaultLog
from streams.worker.publication import Publication
from streams.worker.zone_states import ZoneStates


class Outbox:
    """Sends the records of decisions, and collects their confirmations."""

    def __init__(
        self, publisher: Publisher, publication: Publication, count: Callable[[str], None] = lambda _: None
    ) -> None:
        """Begin without confirmations. `count` is called with a metric's name at each occurrence."""
        self._publisher = publisher
        self._publication = publication
        self._dead_letters = dead_letter_name(topic_name(publication.topic_prefix, LEDGER))
        self._zone_states = ZoneStates(publication.topic_prefix)
        self._fault_log = FaultLog(count)
        self._confirmations: list[Confirmation] = []

    async def publish(self, cell: Cell | None, decisions: Collection[Decision]) -> None:
        """Send the decisions of a cell on one event."""
        for decision in decisions:
            for sent in self._publication.records(decision):
                await self._send(sent)
        if cell is not None:
            self._fault_log.log_fault(cell, decisions)
            for sent in self._zone_states.records(cell, decisions):
                await self._send(sent)

    async def refuse(self, record: ReadRecord, reason: str) -> None:
        """Send the dead letter of a ledger record."""
        await self._send(dead_letter(record, self._dead_letters, reason))

    def take_confirmations(self) -> list[Confirmation]:
        """Return the confirmations of the records sent since the last call."""
        taken, self._confirmations = self._confirmations, []
        return taken

    def release(self) -> None:
        """Forget confirmations: partitions are reassigned, and unsecured decisions are published again."""
        self._zone_states.forget()
        self._confirmations = []

    async def _send(self, record: SentRecord) -> None:
        self._confirmations.append(await self._publisher.send(record))
