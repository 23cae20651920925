"""The events to come in a simulation, in the order of their virtual times."""

import heapq
import math
from enum import IntEnum

from schemas.base import Event


class Rank(IntEnum):
    """The order of events at the same instant, as an orderly deployment would have it."""

    SET_UP = 0
    """Configuration, nodes, quotes."""
    REPORT = 1
    """What a slot's runs report at its very end, before the tick that opens the next one."""
    TICK = 2
    ANSWER = 3
    """A solver's."""
    JOB = 4


class EventQueue:
    """Ties of time and rank are served in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Rank, int, Event]] = []
        """Time, rank and number of the event; no two numbers are equal, so events are never compared."""
        self._added = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite where the queue is empty."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, time_s: float, rank: Rank, event: Event) -> None:
        """Put an event into the queue."""
        heapq.heappush(self._heap, (time_s, rank, self._added, event))
        self._added += 1

    def pop(self) -> tuple[float, Event]:
        """Take the next event and its time.

        Raises:
            IndexError: the queue is empty.
        """
        time_s, _, _, event = heapq.heappop(self._heap)
        return time_s, event
