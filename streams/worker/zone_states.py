"""What the zones of cells are at present, for a compacted view: who needs it need not read the whole log."""

from collections.abc import Collection, Iterator

from schemas.cells import Zone
from schemas.codec import Decision
from schemas.decisions import NodeMoved, ZoneAccepted
from schemas.topics import ZONES_STATE, topic_name
from schemas.views import ZoneState
from streams.cell.cell import Cell
from streams.kafka.records import SentRecord

_Told = tuple[Zone, tuple[str, ...]]


class ZoneStates:
    """Tells of each zone what has changed since it was last told; all of a cell when it is first seen."""

    def __init__(self, topic_prefix: str) -> None:
        self._topic = topic_name(topic_prefix, ZONES_STATE)
        self._told: dict[str, dict[str, _Told]] = {}
        """By cell and zone."""

    def records(self, cell: Cell, decisions: Collection[Decision]) -> Iterator[SentRecord]:
        """Those of a cell that has just decided this."""
        pool = cell.nodes
        if pool is None:
            return
        is_known = cell.name in self._told
        if is_known and not any(isinstance(each.outcome, NodeMoved | ZoneAccepted) for each in decisions):
            return
        told = self._told.setdefault(cell.name, {})
        moved = pool.layout.lent.keys() - pool.loans.keys()
        for zone in pool.layout.owned.zones:
            elsewhere = tuple(node.id for node in zone.nodes if node.id in moved) if moved else ()
            if told.get(zone.id) == (zone, elsewhere):
                continue
            told[zone.id] = zone, elsewhere
            state = ZoneState(cell=cell.name, zone=zone, elsewhere=elsewhere)
            yield SentRecord(
                self._topic,
                f"{cell.name}/{zone.id}".encode(),
                state.model_dump_json().encode(),
                [("content-type", b"application/json")],
            )

    def forget(self) -> None:
        """Cells may be another worker's from now on; what is taken over again is told again."""
        self._told.clear()
