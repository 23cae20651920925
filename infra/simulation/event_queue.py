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


class EventQueue:
    """Ties of time and rank are served in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Rank, int, Event, Iterator[tuple[float, Event]]]] = []
        """Time, rank and number of an event, and what follows it. No two numbers are equal, so events are
        never compared."""
        self._added = 0

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite where the queue is empty."""
        return self._heap[0][0] if self._heap else math.inf

    def holds(self, rank: Rank) -> bool:
        """Whether an event of this rank is to come."""
        return any(rank == held for _, held, *_ in self._heap)

    def add(self, time_s: float, rank: Rank, event: Event) -> None:
        """Put an event into the queue."""
        self.add_all(rank, iter([(time_s, event)]))

    def add_all(self, rank: Rank, events: Iterator[tuple[float, Event]]) -> None:
        """Put events into the queue that come in the order of their times.

        Each is asked for when the one before it is taken, so they may be endless.
        """
        self._push_next(rank, self._added, events)
        self._added += 1

    def pop(self) -> tuple[float, Event]:
        """Take the next event and its time.

        Raises:
            IndexError: the queue is empty.
        """
        time_s, rank, number, event, following = heapq.heappop(self._heap)
        self._push_next(rank, number, following)
        return time_s, event

    def _push_next(self, rank: Rank, number: int, events: Iterator[tuple[float, Event]]) -> None:
        for time_s, event in islice(events, 1):
            heapq.heappush(self._heap, (time_s, rank, number, event, events))
