"""Times and nodes of a recorded ledger, read before a simulation starts."""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.fleet import FleetEvent, NodeOffline, NodeSilent
from streams.cell.ledger_event import LedgerEvent

BEFORE_ALL = -math.inf
"""Time of events before a cell's first tick whose senders state no time."""


def timed(ledger: Iterable[LedgerEvent]) -> Iterator[tuple[float, LedgerEvent]]:
    """Yield each event of one cell with its time, in ascending order.

    The cell depends on the ledger's order and its ticks alone. Between two ticks, an event has the time of
    its sender, as far as order and ticks allow, because clocks of senders may be wrong.
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
    # A time without a zone would count as local time.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


ID_PREFIX = "what-if-"
"""Prefix of the ids of events that a what-if adds, before generation and offset: a what-if of its own ledger
must not repeat them."""

_GENERATION = re.compile(rf"{ID_PREFIX}([0-9]{{1,18}})-[0-9]+")


@dataclass
class LedgerRecording:
    """Folds the events of one cell, with their times (`timed`)."""

    configuration: CellConfigured
    """Configuration of the ledger."""
    end_s: float = BEFORE_ALL
    """Time of the last event."""
    generation: int = 0
    """Number above those of all what-ifs that the ledger came from."""
    _spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Start and end of the times in which each node was present, ascending; infinite for an open end."""

    def add(self, time_s: float, entry: LedgerEvent) -> None:
        """Add the next event."""
        self.end_s = time_s
        if made := _GENERATION.fullmatch(entry.envelope.id):
            self.generation = max(self.generation, int(made[1]) + 1)
        match event := entry.envelope.event:
            case NodeOffline():
                self._end_presence(event.node, time_s)
            case NodeSilent():
                self._end_presence(event.node, time_s - event.silent_s)
            case _ if isinstance(event, FleetEvent):
                self._begin_presence(event.node, time_s)

    def has_node(self, node: str) -> bool:
        """Return whether the ledger configures the node, or has an event of it."""
        return node in self._spans or any(
            node == known.id for zone in self.configuration.zones for known in zone.nodes
        )

    def present_until_s(self, node: str, time_s: float) -> float | None:
        """Return the end of the presence of a node that was present at a time; None if it was not.

        A presence begins with an event of the node. It ends when the node leaves, with the last event before
        a silence, or never.
        """
        spans = self._spans.get(node, [])
        index = bisect_right(spans, (time_s, math.inf)) - 1
        if index < 0:
            return None
        _, until_s = spans[index]
        return until_s if time_s <= until_s else None

    def _begin_presence(self, node: str, time_s: float) -> None:
        spans = self._spans.setdefault(node, [])
        if not spans or spans[-1][1] < math.inf:
            spans.append((time_s, math.inf))

    def _end_presence(self, node: str, time_s: float) -> None:
        spans = self._spans.setdefault(node, [])
        if spans and spans[-1][1] == math.inf:
            spans[-1] = (spans[-1][0], max(time_s, spans[-1][0]))
