"""How many events are on their way from intake to their cells: intake sends no more than are folded soon.

What waits in the ledger is decided in its order, whoever sent it. So whatever is to wait its turn must wait
before the ledger, and the ledger is kept short.
"""

from collections import deque

_LONGEST_S = 0.25
"""So long, as far as known, the events on their way may take to be folded."""
_LEAST_EVENTS = 8
_MOST_EVENTS = 512
_MEMORY = 0.05
"""Of the mean time of a fold: the part that the newest one counts for."""


class LedgerBacklog:
    """Counts the events that this worker has sent to ledger partitions whose cells it folds itself."""

    def __init__(self) -> None:
        self._unconfirmed = 0
        self._confirmed: dict[int, deque[int]] = {}
        """By partition, the offsets of events that are not folded yet, ascending."""
        self._folded: dict[int, int] = {}
        """By partition, the offset that was folded last."""
        self._fold_s = 0.001

    def has_room(self) -> bool:
        """Whether another event may be sent."""
        waiting = self._unconfirmed + sum(map(len, self._confirmed.values()))
        return waiting < min(max(_LONGEST_S / self._fold_s, _LEAST_EVENTS), _MOST_EVENTS)

    def sent(self) -> None:
        """Note an event that is sent."""
        self._unconfirmed += 1

    def confirmed(self, partition: int, offset: int) -> None:
        """Note where the broker has put an event that was sent; events of a partition in their order."""
        self._unconfirmed -= 1
        if offset > self._folded.get(partition, -1):
            self._confirmed.setdefault(partition, deque()).append(offset)

    def folded(self, partition: int, offset: int, fold_s: float) -> None:
        """Note that a cell has taken an event, and how long that took."""
        self._folded[partition] = offset
        self._fold_s += _MEMORY * (fold_s - self._fold_s)
        waiting = self._confirmed.get(partition)
        while waiting and waiting[0] <= offset:
            waiting.popleft()

    def forget(self) -> None:
        """Begin anew: partitions are assigned anew. What is unconfirmed will still be confirmed."""
        self._confirmed.clear()
        self._folded.clear()
