"""Parts of a cluster: its servers, the workers of jobs on them, and an index of servers by free GPUs."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Literal

from solvers.elastic.demand import Pool

Group = Literal["firm", "flexible", "empty"]
"""Group of a server: `firm` with a worker that is not flexible, `flexible` with flexible workers only."""

Kind = Literal["base", "flexible", "inelastic"]
"""Kind of workers: a job's base demand, workers of an elastic job beyond it, workers of an inelastic job."""


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


@dataclass(slots=True)
class Server:
    """Server of a cluster, and the workers on it."""

    server_id: str
    pool: Pool
    gpus: int
    workers_per_worker: int
    peers: ServerClass
    """Open servers of the same speed, with this one if it is open."""
    free: int
    group: Group = "empty"
    """Group in which `peers` counts it."""
    firm_gpus: int = 0
    """GPUs of workers that are not flexible."""
    is_open: bool = True
    parts: dict[str, int] = field(default_factory=dict)
    """Number of kinds of workers, by job."""

    @property
    def is_empty(self) -> bool:
        """Whether the server has no workers."""
        return not self.parts

    @property
    def jobs(self) -> list[str]:
        """Jobs that have workers here, by id."""
        return sorted(self.parts)


@dataclass(slots=True)
class Part:
    """Workers of one kind of a job, all in one class of servers."""

    pool: Pool
    workers_per_worker: int
    gpus_per_worker: int
    workers: dict[str, int] = field(default_factory=dict)
    """Real workers by server."""


@dataclass(slots=True)
class PlacementTrial:
    """Servers and jobs as they were before a trial changed them."""

    servers: dict[str, tuple[int, int, dict[str, int]]] = field(default_factory=dict)
    """Free GPUs, firm GPUs and parts, by server id."""
    jobs: dict[str, list[tuple[Kind, Part, dict[str, int]]]] = field(default_factory=dict)
    """Parts of each job, each with its workers, by job id."""

    def keep(self, server: Server, job_id: str, parts: dict[Kind, Part]) -> None:
        """Keep copies of a server and a job before their first change."""
        if server.server_id not in self.servers:
            self.servers[server.server_id] = (server.free, server.firm_gpus, server.parts.copy())
        if job_id not in self.jobs:
            self.jobs[job_id] = [
                (kind, part, part.workers.copy()) for kind, part in parts.items() if part.workers
            ]


def emptied_first(server: Server) -> tuple[bool, bool, int, str]:
    """Return the key that sorts servers for the removal of flexible workers that are no longer granted."""
    return (server.is_open, server.firm_gpus > 0, server.gpus - server.free, server.server_id)


def class_of(part: Part) -> tuple[Pool, int]:
    """Return the pool of a part's servers, and their `workers_per_worker`."""
    return (part.pool, part.workers_per_worker)


def may_stand_in(flexible: Part, base: Part) -> bool:
    """Return whether flexible workers on training servers can replace base ones on loaned servers."""
    pools = flexible.pool, base.pool
    return pools == ("training", "loaned") and flexible.workers_per_worker == base.workers_per_worker
