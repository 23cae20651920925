"""What a recorded ledger says of its nodes, read once before anything is simulated from it."""

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import get_args

from infra.simulation.sent_times import BEFORE_ALL
from schemas.cells import CellConfigured
from schemas.fleet import FleetEvent, NodeOffline
from streams.cell import LedgerEvent

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
    """By node, from when until when it was there, ascending."""
    _gone: set[str] = field(default_factory=set)
    """Nodes that left in good order and were not heard since."""

    def take(self, time_s: float, entry: LedgerEvent) -> None:
        """Take the next event."""
        self.end_s = time_s
        if made := _GENERATION.fullmatch(entry.envelope.id):
            self.generation = max(self.generation, int(made[1]) + 1)
        event = entry.envelope.event
        if isinstance(event, get_args(FleetEvent)):
            self._hear(event.node, time_s)
        if isinstance(event, NodeOffline):
            self._gone.add(event.node)

    def knows(self, node: str) -> bool:
        """Whether the node is the ledger's: configured, or heard at least."""
        return node in self._spans or any(
            node == known.id for zone in self.configuration.zones for known in zone.nodes
        )

    def there_until_s(self, node: str, time_s: float) -> float | None:
        """Until when a node was there that was there at this moment; None if it was not.

        It was there from a sign of life to the last one before it left, or before a silence that was longer
        than the cell waits; or to the end.
        """
        spans = self._spans.get(node, [])
        index = bisect_right(spans, (time_s, math.inf)) - 1
        if index < 0:
            return None
        _, until_s = spans[index]
        is_last = index == len(spans) - 1 and node not in self._gone
        if is_last and self.end_s - until_s <= self.configuration.node_timeout_s:
            return math.inf
        return until_s if time_s <= until_s else None

    def _hear(self, node: str, time_s: float) -> None:
        spans = self._spans.setdefault(node, [])
        if spans and node not in self._gone:
            from_s, until_s = spans[-1]
            if time_s <= until_s + self.configuration.node_timeout_s:
                spans[-1] = (from_s, time_s)
                return
        self._gone.discard(node)
        spans.append((time_s, time_s))
