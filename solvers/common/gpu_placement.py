"""Placement of the GPUs of a task or job on as few nodes as possible (Ymir, section 5.1, last paragraph)."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping


class IdleGpus:
    """Idle GPUs by node, indexed by their count, so that a placement does not scan every node.

    Each node has a rank, which decides ties: the lowest first.
    """

    def __init__(self, nodes: Iterable[str], idle: Mapping[str, int]) -> None:
        """
        Args:
            nodes: all nodes that may ever be counted, in the order of their ranks.
            idle: idle GPUs of the nodes that are counted now.
        """
        self._names = list(nodes)
        self._ranks = {node: rank for rank, node in enumerate(self._names)}
        self._idle: dict[str, int] = {}
        self._by_count: dict[int, list[int]] = {}
        """Ascending ranks of nodes, by their count of idle GPUs. Only counts above 0 with nodes are keys."""
        self.total = 0
        """Total of idle GPUs."""
        for node in self._names:
            if node in idle:
                self.count(node, idle[node])

    def of(self, node: str) -> int | None:
        """Return the idle GPUs of a node; None if it is not counted."""
        return self._idle.get(node)

    def count(self, node: str, idle: int) -> None:
        """Set the idle GPUs of a node."""
        self.drop(node)
        self._idle[node] = idle
        self.total += idle
        if idle > 0:
            insort(self._by_count.setdefault(idle, []), self._ranks[node])

    def drop(self, node: str) -> None:
        """Remove a node from the count."""
        idle = self._idle.pop(node, 0)
        self.total -= idle
        if idle > 0:
            ranks = self._by_count[idle]
            del ranks[bisect_left(ranks, self._ranks[node])]
            if not ranks:
                del self._by_count[idle]

    def allocate(self, gpus: int, preferred: Mapping[str, int]) -> dict[str, int] | None:
        """Allocate GPUs and return their counts by node, the largest first; None, without a change, if too
        few are idle.

        A single node with room is preferred to several; among those, the fullest. Otherwise nodes with the
        most room are taken whole, and the rest comes from the fullest node with room for it.

        Args:
            preferred: nodes that held the task before; they come first among equally good nodes.
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
        """Return the first node with this count of idle GPUs."""
        ranks = [self._ranks[node] for node in preferred if self._idle.get(node) == idle]
        return self._names[min(ranks, default=self._by_count[idle][0])]
