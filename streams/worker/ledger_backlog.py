"""How many events are on their way from intake to their cells: intake sends no more than are folded soon.

Events in the ledger are decided in its order, whoever sent them. So events must wait their turn before the
ledger, and the ledger is kept short. The backlog of partitions that another worker folds is unknown here, so
events go there at a rate that leaves room for that worker's own.
"""

from collections import Counter, deque
from collections.abc import Callable

from streams.worker.intake_queue import Waiting

LONGEST_S = 0.1
"""So long, as far as known, the events on their way may take to be folded."""
_LEAST_EVENTS_PER_S = 80.0
_MOST_EVENTS_PER_S = 5_120.0
"""However slow or quick folding is, so many may be on their way for each second that they may take: the way
through Kafka takes its time as well."""
_ELSEWHERE_EVERY_S = 0.01
_ELSEWHERE_AT_ONCE_S = 0.2
"""Of that time's worth of events may go elsewhere at once, as who sends them looks only now and then."""
_MEMORY = 0.05
"""Of the mean time of a fold: the part that the newest one counts for."""


class LedgerBacklog:
    """Counts the events that this worker has sent to ledger partitions."""

    def __init__(self, monotonic_s: Callable[[], float], folds_here: Callable[[int], bool]) -> None:
        """`folds_here`: whether this worker folds the cells of a partition."""
        self._monotonic_s = monotonic_s
        self._folds_here = folds_here
        self._elsewhere_from_s = 0.0
        """When the next event may go to a partition that another worker folds."""
        self._unconfirmed: Counter[int] = Counter()
        """By partition, how many events are sent whose place the broker has not told yet."""
        self._confirmed: dict[int, deque[tuple[int, Waiting]]] = {}
        """By partition, the events that are not folded yet and their offsets, ascending."""
        self._folded: dict[int, int] = {}
        """By partition, the offset that was folded last."""
        self._fold_s = 0.001

    def has_room(self, partition: int, longest_s: float = LONGEST_S) -> bool:
        """Whether another event may be sent to a partition.

        Args:
            longest_s: so long the events on their way may take to be folded.
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
        """Note where the broker has put an event that was sent; events of a partition in their order."""
        self._unconfirmed[partition] -= 1
        if self.is_ours(partition) and offset > self._folded.get(partition, -1):
            self._confirmed.setdefault(partition, deque()).append((offset, event))

    def is_ours(self, partition: int) -> bool:
        """Whether this worker folds the cells of a partition."""
        return partition in self._folded or self._folds_here(partition)

    def folded(self, partition: int, offset: int, fold_s: float) -> Waiting | None:
        """Note that a cell has taken an event, and how long that took.

        Returns:
            The event, where its confirmation was seen before.
        """
        self._folded[partition] = offset
        self._fold_s += _MEMORY * (fold_s - self._fold_s)
        waiting = self._confirmed.get(partition)
        event = None
        while waiting and waiting[0][0] <= offset:
            event = waiting.popleft()
        return event[1] if event is not None and event[0] == offset else None

    def is_empty(self) -> bool:
        """Whether all that was sent to this worker's own partitions is folded."""
        return self._count_waiting() == 0

    def forget(self) -> None:
        """Begin anew: partitions are assigned anew. What is unconfirmed will still be confirmed."""
        self._confirmed.clear()
        self._folded.clear()

    def _count_waiting(self) -> int:
        """How many events that were sent to this worker's own partitions are not folded yet."""
        unconfirmed = sum(
            count for partition, count in self._unconfirmed.items() if count and self.is_ours(partition)
        )
        return unconfirmed + sum(map(len, self._confirmed.values()))
