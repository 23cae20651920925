"""Which nodes are alive, judged by the worker that knows what it has read late.

A node is silent when it was not heard for longer than its cell's timeout, counted in time spent listening.
There are two ways to listen:

- Everything that the broker has of the `fleet` partition has been read: time passes as on the reader's clock.
- There is more to read: time passes as between the records, by the times at which the broker appended them.

A worker that is suspended or has no broker does not listen, and that time counts for no node. So late reading
delays the detection of a dead node, but never makes a live one look dead.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_STEP_S = 4.0
"""The longest time between two moments of listening that counts. In a longer pause the worker did not listen,
or the broker accepted nothing."""
GRACE_S = 3.0
"""After a pause, how long to wait for nodes whose reports are still on their way."""


@dataclass
class _Listening:
    """How a partition of `fleet` has been listened to."""

    resumed_s: float
    """When listening began, or went on after a pause."""
    paused_s: float
    """When the last pause began."""
    last_s: float
    listened_s: float = 0.0
    read_s: float = 0.0
    """How much of it was listened behind `last_s`."""
    appended_s: float | None = None
    """When the newest record behind `last_s` was appended, by the broker's clock."""


@dataclass(frozen=True)
class _Sign:
    heard_s: float
    listened_s: float
    """What had been listened by then."""


class LivenessMonitor:
    """The signs of life of nodes, by the partition of `fleet` that their cell's records lie in."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._listening: dict[int, _Listening] = {}
        self._signs: dict[tuple[str, str], _Sign] = {}
        """By cell and node."""

    def listen(self, partition: int, now_s: float) -> None:
        """Note that everything that a partition holds now has been read; `now_s` never goes back."""
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
        """Note that the next record of a partition has been read, and when the broker appended it."""
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
        """Whether what the broker had appended to a partition by then has been read, as far as its records
        tell."""
        listening = self._listening.get(partition)
        return listening is not None and (listening.appended_s or 0.0) >= appended_s

    def hear(self, partition: int, cell: str, node: str, now_s: float) -> None:
        """Note a sign of life."""
        listening = self._listening.get(partition)
        self._signs[cell, node] = _Sign(now_s, 0.0 if listening is None else listening.listened_s)

    def silence_s(self, partition: int, cell: str, node: str) -> float:
        """For how long the partition was listened to since the node was last heard."""
        listening = self._listening.get(partition)
        if listening is None:
            return 0.0
        sign = self._signs.get((cell, node))
        return listening.listened_s - (0.0 if sign is None else sign.listened_s)

    def settled(self, partition: int, cell: str, nodes: Iterable[str], now_s: float) -> bool:
        """Whether what the nodes reported during the last pause has been read, as far as can be known.

        True when each has been heard since the pause began, or the grace after it is over.
        """
        listening = self._listening.get(partition)
        if listening is None:
            return False
        if now_s - listening.resumed_s >= GRACE_S:
            return True
        signs = (self._signs.get((cell, node)) for node in nodes)
        return all(sign is not None and sign.heard_s > listening.paused_s for sign in signs)

    def forget(self, now_s: float) -> None:
        """Begin anew: the partitions are assigned anew."""
        self._began_s = now_s
        self._listening.clear()
        self._signs.clear()
