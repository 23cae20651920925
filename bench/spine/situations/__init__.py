"""A cell amid its work, and an event that it is about to handle."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from bench.spine.cells import CELL, SLOT_S
from schemas.base import HOURS_PER_DAY, Event, Outcome
from schemas.cells import CellConfigured, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.fleet import NodeOnline
from streams.cell.cell import Cell, LedgerEvent

ZONE = "z"
FREE = Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY)


@dataclass(frozen=True)
class Situation:
    """A state of a cell, and the event that follows."""

    policy: str
    what: str
    """In words."""
    packed: bytes
    event: LedgerEvent

    def time_s(self) -> float:
        """Return the processor time that the cell takes to handle the event, this time."""
        cell = Cell.unpack(self.packed)
        began_s = time.process_time()
        cell.handle(self.event)
        return time.process_time() - began_s


def cell_of(zone: Zone) -> CellConfigured:
    """A cell of one zone, whose energy costs nothing."""
    return CellConfigured(cell=CELL, epoch_s=0.0, slot_s=SLOT_S, tariffs=(FREE,), zones=(zone,))


class Story:
    """A cell as its events make it."""

    def __init__(self, configured: CellConfigured, runners: tuple[str, ...]) -> None:
        self.cell = Cell(CELL)
        self._offsets = count()
        self.tell(configured, ClockTicked(cell=CELL, time_s=0.0))
        for zone in configured.zones:
            self.join(zone, runners)

    def join(self, zone: Zone, runners: tuple[str, ...]) -> None:
        """Have all nodes of a zone come online."""
        for node in zone.nodes:
            self.tell(NodeOnline(cell=CELL, node=node.id, base_model=zone.base_model, runners=runners))

    def tell(self, *events: Event) -> list[Outcome]:
        """Have the cell handle events; what it decides."""
        decided: list[Outcome] = []
        for event in events:
            decided += [decision.outcome for decision in self.cell.handle(self._entry(event))]
        return decided

    def tick(self, time_s: float) -> list[Outcome]:
        """Have the clock move on."""
        return self.tell(ClockTicked(cell=CELL, time_s=time_s))

    def before(self, policy: str, what: str, event: Event) -> Situation:
        """The present state, before an event."""
        return Situation(policy, what, self.cell.packed(), self._entry(event))

    def before_each(self, policy: str, events: Iterable[tuple[str, Event]]) -> Iterator[Situation]:
        """The present state, before each of several events."""
        packed = self.cell.packed()
        for what, event in events:
            yield Situation(policy, what, packed, self._entry(event))

    def _entry(self, event: Event) -> LedgerEvent:
        offset = next(self._offsets)
        return LedgerEvent(offset, Envelope(f"event-{offset}", "bench", "", event))
