"""Room that flexible workers make for the base demand of jobs, on the servers where they are."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import merge
from typing import NamedTuple

from solvers.elastic.cluster import Cluster
from solvers.elastic.demand import Pool


class Standing(NamedTuple):
    """What is to be had of a server."""

    pool: Pool
    workers_per_worker: int
    free: int
    movable: int
    """GPUs of flexible workers that may go."""

    def gain(self, gpus_per_worker: int) -> int:
        """For how many more workers there is room if those go."""
        return (self.free + self.movable) // gpus_per_worker - self.free // gpus_per_worker


class MovableWorkers:
    """Flexible workers of some jobs, which may make way for base demands of others.

    It follows what it takes off servers by itself, and what others do there by `refresh`. So a round with
    hundreds of jobs to make way for looks at each server once, and then only at those that change.
    """

    def __init__(self, cluster: Cluster, jobs: Iterable[str]) -> None:
        """
        Args:
            jobs: those whose flexible workers may go; the first ones go first.
        """
        self._cluster = cluster
        self._hosted: dict[str, dict[str, int]] = {}
        """By open server: GPUs of the flexible workers of each job."""
        self._standings: dict[str, Standing] = {}
        self._servers: dict[Standing, list[str]] = {}
        """Those that stand alike, by id."""
        for job_id in jobs:
            part = cluster.parts_of(job_id).get("flexible")
            if part is not None:
                for server, workers in part.workers.items():
                    if cluster.server(server).is_open:
                        self._hosted.setdefault(server, {})[job_id] = workers * part.gpus_per_worker
        for server in self._hosted:
            self._enter(server)

    def room(self, gpus_per_worker: int, pool: Pool) -> int:
        """The most workers of a job, normalised, that a pool has room for if all flexible ones go."""
        gains = self._gains(gpus_per_worker, pool)
        rooms = self._cluster.class_rooms(gpus_per_worker, pool)
        most = self._cluster.most_workers
        workers = (min(room + gains.get(factor, 0), most) // factor for factor, room in rooms.items())
        return int(max(workers, default=0))

    def make_way(self, workers: int, gpus_per_worker: int, pool: Pool) -> list[str]:
        """Take flexible workers off servers until there is room for so many workers in one class of the pool,
        the fastest that can have it; first where the fewest GPUs must go for one more, ties by server id.

        Args:
            workers: normalised.

        Returns:
            The jobs that have lost some: nobody where all of them together would not make enough room.
        """
        gains = self._gains(gpus_per_worker, pool)
        for factor, room in self._cluster.class_rooms(gpus_per_worker, pool).items():
            wanted = workers * factor - room
            if gains.get(factor, 0) >= wanted and workers * factor <= self._cluster.most_workers:
                losers = self._clear(self._least_first(gpus_per_worker, pool, factor, wanted))
                for job_id in losers:
                    for server, count in self._cluster.drop_fractions(job_id).items():
                        self._lose(job_id, server, count)
                return losers
        return []

    def refresh(self, servers: Iterable[str]) -> None:
        """Workers have come to servers, or have left them, that are none of those that may go."""
        for server in servers:
            if server in self._hosted:
                self._leave(server)
                self._enter(server)

    def _gains(self, gpus_per_worker: int, pool: Pool) -> dict[int, int]:
        """By `workers_per_worker`: for how many more real workers there is room if all flexible ones go."""
        gains: dict[int, int] = {}
        for standing, servers in self._servers.items():
            if standing.pool == pool:
                factor, gain = standing.workers_per_worker, standing.gain(gpus_per_worker)
                gains[factor] = gains.get(factor, 0) + gain * len(servers)
        return gains

    def _least_first(
        self, gpus_per_worker: int, pool: Pool, factor: int, wanted: int
    ) -> list[tuple[str, int]]:
        """Servers to make room on, each with how many GPUs are to be free there."""
        alike: dict[int, list[list[str]]] = {}
        """By the GPUs that must go for one more worker."""
        for standing, servers in self._servers.items():
            if standing[:2] == (pool, factor) and standing.gain(gpus_per_worker):
                alike.setdefault(gpus_per_worker - standing.free % gpus_per_worker, []).append(servers)
        chosen: list[tuple[str, int]] = []
        for missing in sorted(alike):
            for server in merge(*alike[missing]):
                if wanted <= 0:
                    return chosen
                standing = self._standings[server]
                count = min(standing.gain(gpus_per_worker), wanted)
                chosen.append((server, (standing.free // gpus_per_worker + count) * gpus_per_worker))
                wanted -= count
        return chosen

    def _clear(self, servers: Iterable[tuple[str, int]]) -> list[str]:
        """Take workers away until so many GPUs are free; who has lost some."""
        losers: dict[str, None] = {}
        for server, goal_gpus in servers:
            for job_id, held_gpus in list(self._hosted[server].items()):
                missing_gpus = goal_gpus - self._cluster.server(server).free
                if missing_gpus <= 0:
                    break
                size = self._cluster.gpus_per_worker(job_id)
                count = min(held_gpus // size, -(-missing_gpus // size))
                self._cluster.take(job_id, "flexible", server, count)
                self._lose(job_id, server, count)
                losers[job_id] = None
        return list(losers)

    def _lose(self, job_id: str, server: str, count: int) -> None:
        """A job has lost so many real workers on a server."""
        hosted = self._hosted.get(server)
        if hosted is None:
            return  # it is closed
        self._leave(server)
        hosted[job_id] -= count * self._cluster.gpus_per_worker(job_id)
        if not hosted[job_id]:
            del hosted[job_id]
        if hosted:
            self._enter(server)
        else:
            del self._hosted[server]

    def _enter(self, server: str) -> None:
        now = self._cluster.server(server)
        movable_gpus = sum(self._hosted[server].values())
        standing = Standing(now.pool, now.workers_per_worker, now.free, movable_gpus)
        self._standings[server] = standing
        insort(self._servers.setdefault(standing, []), server)

    def _leave(self, server: str) -> None:
        servers = self._servers[self._standings.pop(server)]
        del servers[bisect_left(servers, server)]
