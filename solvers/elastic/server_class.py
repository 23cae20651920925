"""Servers that are equally fast, found by how well they fit."""

from bisect import bisect_left, insort
from typing import Literal

Group = Literal["firm", "flexible", "empty"]
"""Of servers: `firm` ones have a worker that a job cannot lose, `flexible` ones have none such."""


class ServerClass:
    """The open servers of a pool that are equally fast, by group and by their free GPUs."""

    def __init__(self) -> None:
        self.free_gpus = 0
        """Real ones of all."""
        self._servers: dict[Group, list[list[str]]] = {"firm": [], "flexible": [], "empty": []}
        """`[group][free]`: in the order of their ids."""
        self._rooms: dict[int, int] = {}
        """What `room` has found since the servers changed."""

    def add(self, server_id: str, group: Group, free: int) -> None:
        """Count a server in."""
        by_free = self._servers[group]
        while len(by_free) <= free:
            by_free.append([])
        insort(by_free[free], server_id)
        self._rooms.clear()
        self.free_gpus += free

    def drop(self, server_id: str, group: Group, free: int) -> None:
        """Count it out again."""
        servers = self._servers[group][free]
        del servers[bisect_left(servers, server_id)]
        self._rooms.clear()
        self.free_gpus -= free

    def best_fit(self, group: Group, gpus: int) -> str | None:
        """The server of a group that has room for so many GPUs and the least left then."""
        for servers in self._servers[group][gpus:]:
            if servers:
                return servers[0]
        return None

    def room(self, gpus_per_worker: int) -> int:
        """How many real workers fit."""
        if gpus_per_worker not in self._rooms:
            self._rooms[gpus_per_worker] = sum(
                len(servers) * (free // gpus_per_worker)
                for by_free in self._servers.values()
                for free, servers in enumerate(by_free)
            )
        return self._rooms[gpus_per_worker]
