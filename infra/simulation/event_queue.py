"""The events to come in a simulation, in the order of their virtual times."""

import heapq
import math
from collections.abc import Iterator
from enum import IntEnum
from itertools import islice

from schemas.base import Event


class Rank(IntEnum):
    """The order of events at the same instant, as an orderly deployment would have it."""

    SET_UP = 0
    """Configuration, nodes, and what operators, vendors and other systems say."""
    REPORT = 1
    """What a slot's runs report at its very end, before the tick that opens the next one."""
    TICK = 2
    ANSWER = 3
    """A solver's."""
    JOB = 4
    """Jobs, withdrawals and requests for quotes."""


Moments = Iterator[tuple[float, Event | None]]
"""Events in the order of their times. None is a moment without one, at which it is seen what comes next: by
then something else may have happened."""


class EventQueue:
    """Ties of time and rank are served in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Rank, int, Event | None, Moments]] = []
        """Time, rank and number of an event, and what follows it. No two numbers are equal, so events are
        never compared."""
        self._added = 0

    def holds(self, rank: Rank) -> bool:
        """Whether an event of this rank is to come."""
        return any(rank == held for _, held, *_ in self._heap)

    def add(self, time_s: float, rank: Rank, event: Event) -> None:
        """Put an event into the queue."""
        self.add_all(rank, iter([(time_s, event)]))

    def add_all(self, rank: Rank, moments: Moments) -> None:
        """Put events into the queue that come in the order of their times.

        Each is asked for when the one before it is taken, so they may be endless.
        """
        self._push_next(rank, self._added, moments)
        self._added += 1

    def pop(self, until_s: float = math.inf) -> tuple[float, Event] | None:
        """Take the next event that is not later than this, and its time; None if there is none."""
        while self._heap and self._heap[0][0] <= until_s:
            time_s, rank, number, event, following = heapq.heappop(self._heap)
            self._push_next(rank, number, following)
            if event is not None:
                return time_s, event
        return None

    def _push_next(self, rank: Rank, number: int, moments: Moments) -> None:
        for time_s, event in islice(moments, 1):
            heapq.heappush(self._heap, (time_s, rank, number, event, moments))
