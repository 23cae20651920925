"""The order in which waiting events enter the ledger: by time, and fair between writers. Pure.

Each event has a tag, and the event with the least tag enters first. The tag is the event's time, but at least
`interval_s` after the tag of the previous event of the same writer, and more if deciding on its events takes
long. So events of writers with a usual rate enter in the order of their times, whatever their topic and
however late they are read. A writer of many events at once, or of slow ones, is delayed itself, and delays
others only by its share.

Ticks and nodes' reports must not be late, because promised jobs depend on them. So they wait for others for a
second at most, even for many writers that are each within their share.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from streams.kafka.records import Place, ReadRecord
from streams.worker.intake import Accepted

_OVERHEAD_BYTES = 1_500
"""Memory of a waiting record besides its bytes: place and objects."""
_OVERHEAD_BYTES_PER_HEADER = 150
_BYTES_PER_MODEL_BYTE = 7
"""Bytes of an admitted event for each byte of its ledger record: a bid of 730 bytes takes some 4,900."""
_BACK_IN_TIME_S = 1.0
LONGEST_WAIT_S = 1.0
"""Longest wait of ticks and reports, after they are read, for events of others with lower tags."""
_SHARE = 0.1
"""Part of a worker's time above which the events of a writer are delayed."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that is to enter the ledger."""

    cell: str
    writer: str
    time_s: float
    """Time of the event as the queue counts it, see `RecordTimes`."""
    read_s: float
    """Time at which it was read, on a monotonic clock."""
    source: ReadRecord | None = None
    """Its input record; None if the worker adds the event."""
    accepted: Accepted | None = None
    """The event; None if it is validated when its turn comes."""
    is_tick: bool = False
    is_report: bool = False
    """Whether it is a report of a node."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the event and its record."""
        size_bytes = _OVERHEAD_BYTES
        if self.source is not None:
            size_bytes += self.source.size_bytes + _OVERHEAD_BYTES_PER_HEADER * len(self.source.headers)
        if self.accepted is not None:
            size_bytes += _BYTES_PER_MODEL_BYTE * self.accepted.record.size_bytes
        return size_bytes


class RecordTimes:
    """The times of records as the queue counts them.

    Input topics have the broker's times. If a topic is configured otherwise, timestamps are those of the
    producers: they count as no later than now, and as at most a second before the latest time of their
    partition. So no writer gets ahead by an old timestamp, or reserves a place by a future one.
    """

    def __init__(self) -> None:
        self._latest_s: dict[Place, float] = {}

    def of(self, place: Place, timestamp_ms: int | None, now_s: float) -> float:
        """Return the time of the next record of a partition; now without a timestamp."""
        latest_s = self._latest_s.get(place)
        time_s = now_s if timestamp_ms is None else min(timestamp_ms / 1_000, now_s)
        if latest_s is not None:
            time_s = max(time_s, latest_s - _BACK_IN_TIME_S)
        self._latest_s[place] = time_s if latest_s is None else max(time_s, latest_s)
        return time_s

    def forget(self) -> None:
        """Forget all times: partitions are read again."""
        self._latest_s.clear()


class _FairQueue:
    """Events in the order of their tags; those of one writer in the order of their arrival."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._writers: dict[str, deque[Waiting]] = {}
        self._heads: list[tuple[float, int, str]] = []
        """Heap of the writers by the tag of their first event, then by the order of their arrival."""
        self._order = itertools.count()
        self._charges_s: dict[str, float] = {}
        """Extra delay per writer, added to its next tag."""

    def put(self, waiting: Waiting) -> None:
        events = self._writers.get(waiting.writer)
        if events is not None:
            events.append(waiting)
            return
        self._writers[waiting.writer] = deque([waiting])
        heapq.heappush(self._heads, (waiting.time_s, next(self._order), waiting.writer))

    def __bool__(self) -> bool:
        return bool(self._heads)

    def first(self) -> tuple[float, Waiting]:
        """Return the event with the least tag, after its tag."""
        tag_s, _, writer = self._heads[0]
        return tag_s, self._writers[writer][0]

    def pop(self) -> Waiting:
        """Remove and return the event with the least tag."""
        tag_s, _, writer = self._heads[0]
        events = self._writers[writer]
        event = events.popleft()
        if events:
            tag_s = max(events[0].time_s, tag_s + self._interval_s + self._charges_s.pop(writer, 0.0))
            heapq.heapreplace(self._heads, (tag_s, next(self._order), writer))
        else:
            del self._writers[writer]
            self._charges_s.pop(writer, None)
            heapq.heappop(self._heads)
        return event

    def charge(self, writer: str, decided_in_s: float) -> None:
        charge_s = decided_in_s / _SHARE - self._interval_s
        if writer in self._writers and charge_s > 0:
            self._charges_s[writer] = self._charges_s.get(writer, 0.0) + charge_s


class _CellQueue:
    """Events that wait to enter the ledger of one cell.

    A tick may have to wait for earlier events. Meanwhile nodes' reports enter, and all other events wait
    behind the tick.
    """

    def __init__(self, interval_s: float) -> None:
        self._ticks = _FairQueue(interval_s)
        self._reports = _FairQueue(interval_s)
        self._others = _FairQueue(interval_s)

    def put(self, waiting: Waiting) -> None:
        self._lane(waiting).put(waiting)

    def pop(self, may_tick: Callable[[Waiting], bool], now_s: float) -> Waiting | None:
        turn = min(
            (lane for lane in (self._ticks, self._reports, self._others) if lane),
            key=lambda lane: (lane is self._others or not _is_overdue(lane, now_s), lane.first()[0]),
            default=None,
        )
        if turn is self._ticks and not may_tick(turn.first()[1]):
            turn = self._reports
        return turn.pop() if turn else None

    def charge(self, event: Waiting, decided_in_s: float) -> None:
        if not event.is_tick:
            self._lane(event).charge(event.writer, decided_in_s)

    def _lane(self, event: Waiting) -> _FairQueue:
        if event.is_tick:
            return self._ticks
        return self._reports if event.is_report else self._others

    def __bool__(self) -> bool:
        return any((self._ticks, self._reports, self._others))


def _is_overdue(lane: _FairQueue, now_s: float) -> bool:
    """Return whether the first event of a lane has waited for too long, and not because of its own writer."""
    tag_s, event = lane.first()
    return now_s - event.read_s > LONGEST_WAIT_S and tag_s - event.time_s <= LONGEST_WAIT_S


class IntakeQueue:
    """Events that wait to enter the ledger, served cell by cell in turn."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._cells: OrderedDict[str, _CellQueue] = OrderedDict()
        """Cells with waiting events, the next one first."""
        self.size_bytes = 0
        """Approximate memory of all waiting events."""

    def put(self, waiting: Waiting) -> None:
        if waiting.cell not in self._cells:
            self._cells[waiting.cell] = _CellQueue(self._interval_s)
        self._cells[waiting.cell].put(waiting)
        self.size_bytes += waiting.size_bytes

    def pop(
        self,
        now_s: float,
        may_tick: Callable[[Waiting], bool],
        has_room: Callable[[str], bool] = lambda _cell: True,
    ) -> Waiting | None:
        """Remove and return the next event; None if none may enter.

        Args:
            now_s: on the clock of `Waiting.read_s`.
            may_tick: returns whether a tick may enter now.
            has_room: returns whether an event of a cell may enter now.
        """
        for cell in list(self._cells):
            self._cells.move_to_end(cell)
            if not has_room(cell):
                continue
            waiting = self._cells[cell].pop(may_tick, now_s)
            if waiting is not None:
                self.size_bytes -= waiting.size_bytes
                if not self._cells[cell]:
                    del self._cells[cell]
                return waiting
        return None

    def charge(self, event: Waiting, decided_in_s: float) -> None:
        """Charge the time to decide on an event to its writer, whose next events are delayed for it."""
        if event.cell in self._cells:
            self._cells[event.cell].charge(event, decided_in_s)

    def clear(self) -> None:
        self._cells.clear()
        self.size_bytes = 0
