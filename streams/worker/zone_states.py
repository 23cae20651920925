"""Present configurations of zones for a compacted view, whose readers need not read the whole log."""

from collections.abc import Collection, Iterator

from schemas.cells import Zone
from schemas.codec import Decision
from schemas.decisions import NodeMoved, ZoneAccepted
from schemas.topics import ZONES_STATE, topic_name
from schemas.views import ZoneState
from streams.cell.cell import Cell
from streams.kafka.records import SentRecord

_Sent = tuple[Zone, tuple[str, ...]]


class ZoneStates:
    """Makes a record of each zone that has changed since its last record; of all zones of a new cell."""

    def __init__(self, topic_prefix: str) -> None:
        self._topic = topic_name(topic_prefix, ZONES_STATE)
        self._sent: dict[str, dict[str, _Sent]] = {}
        """Contents of the last records, by cell and zone."""

    def records(self, cell: Cell, decisions: Collection[Decision]) -> Iterator[SentRecord]:
        """Yield the records of a cell after some decisions."""
        pool = cell.nodes
        if pool is None:
            return
        is_known = cell.name in self._sent
        if is_known and not any(isinstance(each.outcome, NodeMoved | ZoneAccepted) for each in decisions):
            return
        sent = self._sent.setdefault(cell.name, {})
        moved = pool.layout.lent.keys() - pool.loans.keys()
        for zone in pool.layout.owned.zones:
            elsewhere = tuple(node.id for node in zone.nodes if node.id in moved) if moved else ()
            if sent.get(zone.id) == (zone, elsewhere):
                continue
            sent[zone.id] = zone, elsewhere
            state = ZoneState(cell=cell.name, zone=zone, elsewhere=elsewhere)
            yield SentRecord(
                self._topic,
                f"{cell.name}/{zone.id}".encode(),
                state.model_dump_json().encode(),
                [("content-type", b"application/json")],
            )

    def forget(self) -> None:
        """Forget all records: partitions are reassigned, and records of a new cell are sent again."""
        self._sent.clear()
