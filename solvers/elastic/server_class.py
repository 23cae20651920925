"""Index of servers of equal speed by their free GPUs."""

from bisect import bisect_left, insort
from typing import Literal

Group = Literal["firm", "flexible", "empty"]
"""Group of a server: `firm` with a worker that is not flexible, `flexible` with flexible workers only."""


class ServerClass:
    """Open servers of a pool with equal speed, by group and free GPUs."""

    def __init__(self) -> None:
        self.free_gpus = 0
        """Free GPUs of all servers, real ones."""
        self._servers: dict[Group, list[list[str]]] = {"firm": [], "flexible": [], "empty": []}
        """Servers in the order of their ids: `[group][free]`."""
        self._counts: list[int] = []
        """Number of servers in all groups: `[free]`."""
        self._rooms: dict[int, int] = {}
        """Results of `room` since the last change, by GPUs per worker."""

    def add(self, server_id: str, group: Group, free: int) -> None:
        """Add a server."""
        if free >= len(self._counts):
            more = free + 1 - len(self._counts)
            self._counts += [0] * more
            for by_free in self._servers.values():
                by_free += [[] for _ in range(more)]
        insort(self._servers[group][free], server_id)
        self._counts[free] += 1
        self.free_gpus += free
        self._rooms.clear()

    def drop(self, server_id: str, group: Group, free: int) -> None:
        """Remove a server."""
        servers = self._servers[group][free]
        del servers[bisect_left(servers, server_id)]
        self._counts[free] -= 1
        self.free_gpus -= free
        self._rooms.clear()

    def move(self, server_id: str, before: tuple[Group, int], after: tuple[Group, int]) -> None:
        """Move a server to another group or another number of free GPUs."""
        self.drop(server_id, *before)
        self.add(server_id, *after)

    def best_fit(self, group: Group, gpus: int) -> str | None:
        """Return the server of a group that has room for so many GPUs and the least room left afterwards."""
        for servers in self._servers[group][gpus:]:
            if servers:
                return servers[0]
        return None

    def room(self, gpus_per_worker: int) -> int:
        """Return the number of real workers that fit."""
        if gpus_per_worker not in self._rooms:
            self._rooms[gpus_per_worker] = sum(
                servers * (free // gpus_per_worker) for free, servers in enumerate(self._counts)
            )
        return self._rooms[gpus_per_worker]
