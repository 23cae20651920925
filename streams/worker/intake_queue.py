"""The order in which waiting events enter the ledger, by time and fair between writers; and the room for them
there. Pure.

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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from streams.kafka.records import Partition, ReadRecord
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


LONGEST_FOLDING_S = 0.1
"""Longest expected time to fold the events in flight."""
_LEAST_EVENTS_PER_S = 80.0
_MOST_EVENTS_PER_S = 5_120.0
"""Bounds of the folding rate that the limit assumes: the way through Kafka takes time as well."""
_ELSEWHERE_EVERY_S = 0.01
_ELSEWHERE_AT_ONCE_S = 0.2
"""Duration of the largest burst of events to other workers, as the sender checks only now and then."""
_FOLD_WEIGHT = 0.05
"""Weight of the newest fold in the mean duration."""


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
        self._latest_s: dict[Partition, float] = {}

    def of(self, place: Partition, timestamp_ms: int | None, now_s: float) -> float:
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


class LedgerBacklog:
    """Counts the events between intake and their cells: intake sends no more than are folded soon.

    Events in the ledger are decided in its order, whoever sent them. For fairness events wait before the
    ledger, and the ledger is kept short. The backlog of partitions that another worker folds is unknown, so
    events are sent there at a rate that leaves room for that worker's own.
    """

    def __init__(self, monotonic_s: Callable[[], float], folds_here: Callable[[int], bool]) -> None:
        """Begin without events. `folds_here` returns whether this worker folds the cells of a partition."""
        self._monotonic_s = monotonic_s
        self._folds_here = folds_here
        self._elsewhere_from_s = 0.0
        """Time from which an event may be sent to a partition that another worker folds."""
        self._unconfirmed: Counter[int] = Counter()
        """Number of events without the broker's confirmation, by partition."""
        self._confirmed: dict[int, deque[tuple[int, Waiting]]] = {}
        """Confirmed events that are not folded yet, with ascending offsets, by partition."""
        self._folded: dict[int, int] = {}
        """Last folded offset, by partition."""
        self._fold_s = 0.001

    def has_room(self, partition: int, longest_s: float = LONGEST_FOLDING_S) -> bool:
        """Return whether another event may be sent to a partition.

        Args:
            longest_s: longest time to fold the events in flight.
        """
        if not self.is_ours(partition):
            return self._monotonic_s() >= self._elsewhere_from_s
        folds_per_s = min(max(1 / self._fold_s, _LEAST_EVENTS_PER_S), _MOST_EVENTS_PER_S)
        return self._count_waiting() < longest_s * folds_per_s

    def sent(self, partition: int) -> None:
        """Note an event that is sent to a partition."""
        self._unconfirmed[partition] += 1
        if not self.is_ours(partition):
            earliest_s = self._monotonic_s() - _ELSEWHERE_AT_ONCE_S
            self._elsewhere_from_s = max(self._elsewhere_from_s, earliest_s) + _ELSEWHERE_EVERY_S

    def confirmed(self, partition: int, offset: int, event: Waiting) -> None:
        """Note the offset of a sent event; events of a partition in their order."""
        self._unconfirmed[partition] -= 1
        if self.is_ours(partition) and offset > self._folded.get(partition, -1):
            self._confirmed.setdefault(partition, deque()).append((offset, event))

    def is_ours(self, partition: int) -> bool:
        """Return whether this worker folds the cells of a partition."""
        return partition in self._folded or self._folds_here(partition)

    def folded(self, partition: int, offset: int, fold_s: float) -> Waiting | None:
        """Note that a cell has folded an event, and the duration.

        Returns:
            The event, if its confirmation arrived before; None otherwise.
        """
        self._folded[partition] = offset
        self._fold_s += _FOLD_WEIGHT * (fold_s - self._fold_s)
        waiting = self._confirmed.get(partition)
        event = None
        while waiting and waiting[0][0] <= offset:
            event = waiting.popleft()
        return event[1] if event is not None and event[0] == offset else None

    def is_empty(self) -> bool:
        """Return whether all events sent to this worker's own partitions are folded."""
        return self._count_waiting() == 0

    def forget(self) -> None:
        """Forget confirmed events, as partitions are reassigned; unconfirmed ones will still be confirmed."""
        self._confirmed.clear()
        self._folded.clear()

    def _count_waiting(self) -> int:
        """Return the number of events sent to this worker's own partitions that are not folded yet."""
        unconfirmed = sum(
            count for partition, count in self._unconfirmed.items() if count and self.is_ours(partition)
        )
        return unconfirmed + sum(map(len, self._confirmed.values()))
