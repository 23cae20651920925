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
        self._counts: list[int] = []
        """`[free]`: how many there are in all groups."""
        self._rooms: dict[int, int] = {}
        """What `room` has found since the servers changed."""

    def add(self, server_id: str, group: Group, free: int) -> None:
        """Count a server in."""
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
        """Count it out again."""
        servers = self._servers[group][free]
        del servers[bisect_left(servers, server_id)]
        self._counts[free] -= 1
        self.free_gpus -= free
        self._rooms.clear()

    def move(self, server_id: str, before: tuple[Group, int], after: tuple[Group, int]) -> None:
        """Count a server in another group, or with other free GPUs, than before."""
        self.drop(server_id, *before)
        self.add(server_id, *after)

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
                servers * (free // gpus_per_worker) for free, servers in enumerate(self._counts)
            )
        return self._rooms[gpus_per_worker]
