"""Where the GPUs of a task or job are: on as few nodes as possible (Ymir, section 5.1, last paragraph)."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping


class IdleGpus:
    """Idle GPUs by node, indexed by their number, so that a placement does not look at every node.

    Nodes have a rank each, which decides ties: the lowest first.
    """

    def __init__(self, nodes: Iterable[str], idle: Mapping[str, int]) -> None:
        """
        Args:
            nodes: all that may ever be counted, in the order of their ranks.
            idle: of those that are counted now.
        """
        self._names = list(nodes)
        self._ranks = {node: rank for rank, node in enumerate(self._names)}
        self._idle: dict[str, int] = {}
        self._by_count: dict[int, list[int]] = {}
        """Ascending ranks of the nodes with so many idle GPUs, which are above 0; only numbers of some."""
        self.total = 0
        """Idle GPUs of all nodes."""
        for node in self._names:
            if node in idle:
                self.count(node, idle[node])

    def of(self, node: str) -> int | None:
        """Return the idle GPUs of a node; None where it is not counted."""
        return self._idle.get(node)

    def count(self, node: str, idle: int) -> None:
        """Count so many idle GPUs of a node from now on."""
        self.drop(node)
        self._idle[node] = idle
        self.total += idle
        if idle > 0:
            insort(self._by_count.setdefault(idle, []), self._ranks[node])

    def drop(self, node: str) -> None:
        """Count a node no more."""
        idle = self._idle.pop(node, 0)
        self.total -= idle
        if idle > 0:
            ranks = self._by_count[idle]
            del ranks[bisect_left(ranks, self._ranks[node])]
            if not ranks:
                del self._by_count[idle]

    def take(self, gpus: int, preferred: Mapping[str, int]) -> dict[str, int] | None:
        """Take GPUs and return their numbers by node, the node with the most first; None, and nothing is
        taken, where there are too few.

        One node that has room is taken before several, the fullest of these. Otherwise nodes with the most
        room are taken whole, and for what is left the fullest node that has room for it.

        Args:
            preferred: nodes that have had it before; among nodes that are as good, these come first.
        """
        if gpus > self.total:
            return None
        placed: dict[str, int] = {}
        while gpus:
            idle = min((each for each in self._by_count if each >= gpus), default=0) or max(self._by_count)
            node = self._first(idle, preferred)
            placed[node] = min(idle, gpus)
            gpus -= placed[node]
            self.count(node, idle - placed[node])
        return placed

    def _first(self, idle: int, preferred: Mapping[str, int]) -> str:
        """Return the first node with so many idle GPUs."""
        ranks = [self._ranks[node] for node in preferred if self._idle.get(node) == idle]
        return self._names[min(ranks, default=self._by_count[idle][0])]
