"""The order in which waiting events enter the ledger: by time, and fair between writers. Pure.

Each event has a tag, and the least tag goes first. The tag is the event's time, but at least `interval_s`
after the tag of the previous event from the same writer, and later still if its events took long to decide.
So events of all writers at an ordinary rate enter in the order of their times, whichever topic they came on
and however late they are read. A writer of many events at once, or of slow ones, is delayed itself and delays
the others only by its share.

The clock and the nodes must not be late, because promised jobs depend on them. So they wait for others at
most a second, even for many writers that are each within their share.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from streams.kafka.records import Place, ReadRecord
from streams.worker.intake import Accepted

_OVERHEAD_BYTES = 1_500
"""What a waiting record takes besides its bytes: place and objects."""
_OVERHEAD_BYTES_PER_HEADER = 150
_BYTES_PER_MODEL_BYTE = 7
"""Bytes of an admitted event for each byte of its ledger record: a bid of 730 bytes takes some 4,900."""
_BACK_IN_TIME_S = 1.0
LONGEST_WAIT_S = 1.0
"""How long ticks and reports wait, from when they were read, for events of others with lower tags."""
_SHARE = 0.1
"""Of a worker's time: whose events take more of it to be decided falls behind."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that is to enter the ledger."""

    cell: str
    writer: str
    time_s: float
    """See `RecordTimes`."""
    read_s: float
    """When it was read, on a clock that never goes back."""
    source: ReadRecord | None = None
    """Its input record; None if the worker adds the event."""
    accepted: Accepted | None = None
    """The event; None if it is admitted when its turn comes."""
    is_tick: bool = False
    is_report: bool = False
    """Whether it is a report of a node."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        size_bytes = _OVERHEAD_BYTES
        if self.source is not None:
            size_bytes += self.source.size_bytes + _OVERHEAD_BYTES_PER_HEADER * len(self.source.headers)
        if self.accepted is not None:
            size_bytes += _BYTES_PER_MODEL_BYTE * self.accepted.record.size_bytes
        return size_bytes


class RecordTimes:
    """The times of records as the queue counts them.

    Input topics bear the broker's times. Where a topic is set otherwise, a timestamp is its producer's word:
    it counts for no later than now, and for no more than a second before the latest time that its partition
    had before: no writer gets ahead by an old timestamp, or holds a place by a future one.
    """

    def __init__(self) -> None:
        self._latest_s: dict[Place, float] = {}

    def of(self, place: Place, timestamp_ms: int | None, now_s: float) -> float:
        """The time of the next record of a partition; without a timestamp it is now."""
        latest_s = self._latest_s.get(place)
        time_s = now_s if timestamp_ms is None else min(timestamp_ms / 1_000, now_s)
        if latest_s is not None:
            time_s = max(time_s, latest_s - _BACK_IN_TIME_S)
        self._latest_s[place] = time_s if latest_s is None else max(time_s, latest_s)
        return time_s

    def forget(self) -> None:
        """Begin anew: partitions are read again."""
        self._latest_s.clear()


class _FairQueue:
    """Events in the order of their tags; those of one writer in the order in which they were put."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._writers: dict[str, deque[Waiting]] = {}
        self._heads: list[tuple[float, int, str]] = []
        """Heap of the writers by the tag of their first event, and the order in which they came to wait."""
        self._order = itertools.count()
        self._charges_s: dict[str, float] = {}
        """By writer, what its next tag is to be later by than by the interval."""

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
        """The tag of the event that goes first, and the event."""
        tag_s, _, writer = self._heads[0]
        return tag_s, self._writers[writer][0]

    def pop(self) -> Waiting:
        """Take out the event that goes first."""
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
    """What waits to enter the ledger of one cell.

    A tick may have to wait for what happened before it. Nodes' reports go on meanwhile, all others wait
    behind it.
    """

    def __init__(self, interval_s: float) -> None:
        self._ticks = _FairQueue(interval_s)
        self._reports = _FairQueue(interval_s)
        self._others = _FairQueue(interval_s)

    def put(self, waiting: Waiting) -> None:
        self._lane(waiting).put(waiting)

    def take(self, may_tick: Callable[[Waiting], bool], now_s: float) -> Waiting | None:
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
    """Whether the first event of a lane has waited for long, and not because its own writer sends many."""
    tag_s, event = lane.first()
    return now_s - event.read_s > LONGEST_WAIT_S and tag_s - event.time_s <= LONGEST_WAIT_S


class IntakeQueue:
    """What waits to enter the ledger, cell by cell in turn."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._cells: OrderedDict[str, _CellQueue] = OrderedDict()
        """Those that have something waiting, the next one to be served first."""
        self.size_bytes = 0
        """About what everything that waits takes in memory."""

    def put(self, waiting: Waiting) -> None:
        """Let an event wait."""
        if waiting.cell not in self._cells:
            self._cells[waiting.cell] = _CellQueue(self._interval_s)
        self._cells[waiting.cell].put(waiting)
        self.size_bytes += waiting.size_bytes

    def take(
        self,
        now_s: float,
        may_tick: Callable[[Waiting], bool],
        has_room: Callable[[str], bool] = lambda _cell: True,
    ) -> Waiting | None:
        """The event that enters next; None if none may.

        Args:
            now_s: on the clock of `Waiting.read_s`.
            may_tick: whether a tick may enter now.
            has_room: whether anything of a cell may enter now.
        """
        for cell in list(self._cells):
            self._cells.move_to_end(cell)
            if not has_room(cell):
                continue
            waiting = self._cells[cell].take(may_tick, now_s)
            if waiting is not None:
                self.size_bytes -= waiting.size_bytes
                if not self._cells[cell]:
                    del self._cells[cell]
                return waiting
        return None

    def charge(self, event: Waiting, decided_in_s: float) -> None:
        """Note how long it took to decide an event that entered: its writer's next ones stand back for it."""
        if event.cell in self._cells:
            self._cells[event.cell].charge(event, decided_in_s)

    def clear(self) -> None:
        """Forget everything that waits."""
        self._cells.clear()
        self.size_bytes = 0
