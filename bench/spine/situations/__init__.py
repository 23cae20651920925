"""A busy cell, and the event that it is to handle next."""

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
from schemas.profiles import ProfileAccepted, ProfileReported
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell

ZONE = "z"
FREE = Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY)


@dataclass(frozen=True)
class Situation:
    """A state of a cell, and the event that follows."""

    policy: str
    what: str
    """Description in words."""
    packed: bytes
    event: LedgerEvent

    def time_s(self) -> float:
        """Return the processor time of the cell to handle the event, measured once."""
        cell = Cell.unpack(self.packed)
        began_s = time.process_time()
        cell.handle(self.event)
        return time.process_time() - began_s


def cell_of(zone: Zone) -> CellConfigured:
    """Return a cell of one zone, with free energy."""
    return CellConfigured(cell=CELL, epoch_s=0.0, slot_s=SLOT_S, tariffs=(FREE,), zones=(zone,))


class CellHistory:
    """A cell in the state after its events."""

    def __init__(self, configured: CellConfigured, runners: tuple[str, ...]) -> None:
        self.cell = Cell(CELL)
        self._offsets = count()
        self.send(configured, ClockTicked(cell=CELL, time_s=0.0))
        for zone in configured.zones:
            self.join(zone, runners)

    def join(self, zone: Zone, runners: tuple[str, ...]) -> None:
        """Report all nodes of a zone as online."""
        for node in zone.nodes:
            self.send(NodeOnline(cell=CELL, node=node.id, base_model=zone.base_model, runners=runners))

    def send(self, *events: Event) -> list[Outcome]:
        """Send events to the cell, and return its decisions."""
        decided: list[Outcome] = []
        for event in events:
            decided += [decision.outcome for decision in self.cell.handle(self._entry(event))]
        return decided

    def publish(self, *profiles: ProfileReported) -> None:
        """Publish profiles that the cell accepts."""
        accepted = self.send(*profiles)
        assert all(isinstance(outcome, ProfileAccepted) for outcome in accepted), accepted

    def tick(self, time_s: float) -> list[Outcome]:
        """Advance the clock."""
        return self.send(ClockTicked(cell=CELL, time_s=time_s))

    def before(self, policy: str, what: str, event: Event) -> Situation:
        """Return the present state, before an event."""
        return Situation(policy, what, self.cell.packed(), self._entry(event))

    def before_each(self, policy: str, events: Iterable[tuple[str, Event]]) -> Iterator[Situation]:
        """Yield the present state, before each of several events."""
        packed = self.cell.packed()
        for what, event in events:
            yield Situation(policy, what, packed, self._entry(event))

    def _entry(self, event: Event) -> LedgerEvent:
        offset = next(self._offsets)
        return LedgerEvent(offset, Envelope(f"event-{offset}", "bench", "", event))
