"""Detection of silent nodes by the worker, which allows for records that it reads late.

A node is silent when its cell's timeout has passed without a report, counted in listening time. There are two
ways to listen:

- The `fleet` partition is read to its end: time passes by the reader's clock.
- More is left to read: time passes by the records, whose times of appending the broker sets.

A worker that is suspended or has no broker does not listen, and that time counts for no node. So late reading
delays the detection of a silent node, but never makes an online node count as silent.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_STEP_S = 4.0
"""Longest interval between two reads that counts as listening. In a longer pause the worker did not listen,
or the broker accepted nothing."""
GRACE_S = 3.0
"""Longest wait after a pause for reports that are still in flight."""


@dataclass
class _Listening:
    """Listening time of a partition of `fleet`."""

    resumed_s: float
    """Time at which listening began, or resumed after a pause."""
    paused_s: float
    """Time at which the last pause began."""
    last_s: float
    listened_s: float = 0.0
    read_s: float = 0.0
    """Part of the listening time after `last_s`."""
    appended_s: float | None = None
    """Time at which the newest record after `last_s` was appended, by the broker's clock."""


@dataclass(frozen=True)
class _Sign:
    heard_s: float
    listened_s: float
    """Listening time of the partition at the sign."""


class LivenessMonitor:
    """Signs of life of nodes, and the listening time of each partition of `fleet`."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._listening: dict[int, _Listening] = {}
        self._signs: dict[tuple[str, str], _Sign] = {}
        """Latest signs, by cell and node."""

    def listen(self, partition: int, now_s: float) -> None:
        """Note that a partition is read to its present end; `now_s` never goes back."""
        listening = self._listening.get(partition)
        if listening is None:
            self._listening[partition] = _Listening(now_s, self._began_s, now_s)
            return
        step_s = now_s - listening.last_s
        if step_s > LONGEST_STEP_S:
            listening.paused_s, listening.resumed_s = listening.last_s, now_s
        else:
            listening.listened_s += max(0.0, step_s - listening.read_s)
        listening.last_s, listening.read_s, listening.appended_s = now_s, 0.0, None

    def read(self, partition: int, appended_s: float) -> None:
        """Note the time at which the broker appended the next record of a partition."""
        listening = self._listening.get(partition)
        if listening is None:
            return
        if listening.appended_s is not None:
            step_s = appended_s - listening.appended_s
            if 0 < step_s <= LONGEST_STEP_S:
                listening.listened_s += step_s
                listening.read_s += step_s
            appended_s = max(appended_s, listening.appended_s)
        listening.appended_s = appended_s

    def has_read_until(self, partition: int, appended_s: float) -> bool:
        """Return whether a record has been read that was appended at that time or later."""
        listening = self._listening.get(partition)
        return listening is not None and (listening.appended_s or 0.0) >= appended_s

    def note_sign(self, partition: int, cell: str, node: str, now_s: float) -> None:
        """Note a sign of life."""
        listening = self._listening.get(partition)
        self._signs[cell, node] = _Sign(now_s, 0.0 if listening is None else listening.listened_s)

    def silence_s(self, partition: int, cell: str, node: str) -> float:
        """Return the listening time of the partition since the node's last sign of life."""
        listening = self._listening.get(partition)
        if listening is None:
            return 0.0
        sign = self._signs.get((cell, node))
        return listening.listened_s - (0.0 if sign is None else sign.listened_s)

    def settled(self, partition: int, cell: str, nodes: Iterable[str], now_s: float) -> bool:
        """Return whether the reports of the nodes during the last pause count as read.

        They do once each node has given a sign since the pause began, or the grace after the pause is over.
        """
        listening = self._listening.get(partition)
        if listening is None:
            return False
        if now_s - listening.resumed_s >= GRACE_S:
            return True
        signs = (self._signs.get((cell, node)) for node in nodes)
        return all(sign is not None and sign.heard_s > listening.paused_s for sign in signs)

    def forget(self, now_s: float) -> None:
        """Forget all signs, as partitions are reassigned."""
        self._began_s = now_s
        self._listening.clear()
        self._signs.clear()
