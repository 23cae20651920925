"""The ticker: the only place where real time becomes an event."""

import heapq
import threading
import time
from collections.abc import Iterable

from infra.log.publisher import EventPublisher
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked, next_tick_s, tick_interval_s


def run_clock(
    publisher: EventPublisher,
    cells: Iterable[CellConfigured],
    stop: threading.Event,
    interval_s: float | None = None,
) -> None:
    """Send ticks to each cell until `stop` is set. A tick that would be late, after a pause, is left out.

    Raises:
        PublishError: the broker does not confirm the ticks.
    """
    intervals = {cell.cell: interval_s or tick_interval_s(cell) for cell in cells}
    by_name = {cell.cell: cell for cell in cells}
    due = [(next_tick_s(cell, intervals[name], time.time()), name) for name, cell in by_name.items()]
    heapq.heapify(due)
    for name in by_name:
        publisher.publish(ClockTicked(cell=name, time_s=time.time()))
    while not stop.wait(max(due[0][0] - time.time(), 0)):
        _, name = heapq.heappop(due)
        publisher.publish(ClockTicked(cell=name, time_s=time.time()))
        heapq.heappush(due, (next_tick_s(by_name[name], intervals[name], time.time()), name))
