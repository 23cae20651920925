"""Queue of a simulation's future events, in the order of their virtual times."""

import heapq
import math
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice

from schemas.base import Event


class EventRank(IntEnum):
    """Order of events of the same time."""

    SET_UP = 0
    """Configuration, nodes, and events of operators, vendors and other systems."""
    REPORT = 1
    """Reports of a slot's runs at its very end, before the tick that opens the next one."""
    TICK = 2
    ANSWER = 3
    """Answers of solvers."""
    JOB = 4
    """Jobs, withdrawals and requests for quotes."""


Moments = Iterator[tuple[float, Event | None]]
"""Events in the order of their times. None is a time without an event, at which the next one is computed from
the state of that time."""


class EventQueue:
    """Priority queue by time and rank; ties keep the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, EventRank, int, Event | None, Moments]] = []
        """Time, rank and number of an event, the event, and those after it. Numbers differ, so events are
        never compared."""
        self._added = 0

    def holds(self, rank: EventRank) -> bool:
        """Return whether the queue has an event of this rank."""
        return any(rank == other for _, other, *_ in self._heap)

    def add(self, time_s: float, rank: EventRank, event: Event) -> None:
        self.add_all(rank, iter([(time_s, event)]))

    def add_all(self, rank: EventRank, moments: Moments) -> None:
        """Add events in the order of their times.

        Each is computed when the one before it is popped, so they may be endless.
        """
        self._push_next(rank, self._added, moments)
        self._added += 1

    def pop(self, until_s: float = math.inf) -> tuple[float, Event] | None:
        """Remove and return the next event by `until_s`, with its time; None without any."""
        while self._heap and self._heap[0][0] <= until_s:
            time_s, rank, number, event, following = heapq.heappop(self._heap)
            self._push_next(rank, number, following)
            if event is not None:
                return time_s, event
        return None

    def _push_next(self, rank: EventRank, number: int, moments: Moments) -> None:
        for time_s, event in islice(moments, 1):
            heapq.heappush(self._heap, (time_s, rank, number, event, moments))
