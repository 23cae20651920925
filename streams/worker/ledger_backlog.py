"""Count of the events between intake and their cells: intake sends no more than are folded soon.

Events in the ledger are decided in its order, whoever sent them. For fairness events wait before the ledger,
and the ledger is kept short. The backlog of partitions that another worker folds is unknown, so events are
sent there at a rate that leaves room for that worker's own.
"""

from collections import Counter, deque
from collections.abc import Callable

from streams.worker.intake_queue import Waiting

LONGEST_S = 0.1
"""Longest expected time to fold the events in flight."""
_LEAST_EVENTS_PER_S = 80.0
_MOST_EVENTS_PER_S = 5_120.0
"""Bounds of the folding rate that the limit assumes: the way through Kafka takes time as well."""
_ELSEWHERE_EVERY_S = 0.01
_ELSEWHERE_AT_ONCE_S = 0.2
"""Duration of the largest burst of events to other workers, as the sender checks only now and then."""
_MEMORY = 0.05
"""Weight of the newest fold in the mean duration."""


class LedgerBacklog:
    """Counts the events that this worker has sent to ledger partitions."""

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

    def has_room(self, partition: int, longest_s: float = LONGEST_S) -> bool:
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
        self._fold_s += _MEMORY * (fold_s - self._fold_s)
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
