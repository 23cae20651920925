"""The times and nodes of a recorded ledger, read before a simulation starts."""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.fleet import FleetEvent, NodeOffline, NodeSilent
from streams.cell.cell import LedgerEvent

BEFORE_ALL = -math.inf
"""The time of what happened before a cell's first tick, where its sender does not say."""


def timed(ledger: Iterable[LedgerEvent]) -> Iterator[tuple[float, LedgerEvent]]:
    """Each event of one cell with its time, which never goes back.

    The ledger's order and its ticks are what the cell knows; between two ticks an event happened when its
    sender says, as far as order and ticks allow. Clocks of senders may be wrong, so they decide no more.
    """
    clock_s, interval_s = BEFORE_ALL, 0.0
    since_tick: list[LedgerEvent] = []
    for entry in ledger:
        since_tick.append(entry)
        event = entry.envelope.event
        if isinstance(event, ClockTicked) and event.time_s >= clock_s:
            yield from _between(clock_s, since_tick[:-1], event.time_s)
            yield event.time_s, entry
            interval_s = 0.0 if clock_s == BEFORE_ALL else event.time_s - clock_s
            clock_s, since_tick = event.time_s, []
    # The next tick would have come an interval later.
    yield from _between(clock_s, since_tick, clock_s + interval_s)


def _between(
    earliest_s: float, entries: Iterable[LedgerEvent], latest_s: float
) -> Iterator[tuple[float, LedgerEvent]]:
    time_s = earliest_s
    for entry in entries:
        time_s = max(time_s, min(_sent_s(entry.envelope.time), latest_s))
        yield time_s, entry


def _sent_s(time: str) -> float:
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return BEFORE_ALL
    # A time without a zone would be read in the machine's own.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


ID_PREFIX = "what-if-"
"""Ids of events that a what-if adds, with the generation and the offset: a what-if of its own ledger must not
repeat them."""

_GENERATION = re.compile(rf"{ID_PREFIX}([0-9]{{1,18}})-[0-9]+")


@dataclass
class Recording:
    """Folds the events of one cell, with their times (`timed`)."""

    configuration: CellConfigured
    """The ledger's own."""
    end_s: float = BEFORE_ALL
    """Time of the last event."""
    generation: int = 0
    """Higher than that of any what-if that the ledger came from."""
    _spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By node, from when until when it was there, ascending; infinite for one that is."""

    def take(self, time_s: float, entry: LedgerEvent) -> None:
        """Take the next event."""
        self.end_s = time_s
        if made := _GENERATION.fullmatch(entry.envelope.id):
            self.generation = max(self.generation, int(made[1]) + 1)
        match event := entry.envelope.event:
            case NodeOffline():
                self._lose(event.node, time_s)
            case NodeSilent():
                self._lose(event.node, time_s - event.silent_s)
            case _ if isinstance(event, FleetEvent):
                self._hear(event.node, time_s)

    def knows(self, node: str) -> bool:
        """Whether the node is the ledger's: configured, or heard at least."""
        return node in self._spans or any(
            node == known.id for zone in self.configuration.zones for known in zone.nodes
        )

    def there_until_s(self, node: str, time_s: float) -> float | None:
        """Until when a node was there that was there at this moment; None if it was not.

        It was there from a sign of life until it left, or was last heard before a silence; or to the end.
        """
        spans = self._spans.get(node, [])
        index = bisect_right(spans, (time_s, math.inf)) - 1
        if index < 0:
            return None
        _, until_s = spans[index]
        return until_s if time_s <= until_s else None

    def _hear(self, node: str, time_s: float) -> None:
        spans = self._spans.setdefault(node, [])
        if not spans or spans[-1][1] < math.inf:
            spans.append((time_s, math.inf))

    def _lose(self, node: str, time_s: float) -> None:
        spans = self._spans.setdefault(node, [])
        if spans and spans[-1][1] == math.inf:
            spans[-1] = (spans[-1][0], max(time_s, spans[-1][0]))
