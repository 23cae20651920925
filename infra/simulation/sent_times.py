"""When the events of a recorded ledger happened."""

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from schemas.clock import ClockTicked
from streams.cell import LedgerEvent

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
