"""Removal of workers: room for base demands of others, and the loss of a server by a running job."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import merge
from typing import NamedTuple

from solvers.elastic.cluster import Cluster
from solvers.elastic.cluster_parts import Kind, Part, Server, class_of, may_stand_in
from solvers.elastic.demand import Pool


class ServerRoom(NamedTuple):
    """Room of a server, with the room that its flexible workers occupy."""

    pool: Pool
    workers_per_worker: int
    free: int
    movable: int
    """GPUs of flexible workers that may be removed."""

    def gain(self, gpus_per_worker: int) -> int:
        """Return the number of workers that fit in addition if the flexible ones are removed."""
        return (self.free + self.movable) // gpus_per_worker - self.free // gpus_per_worker


class MovableWorkers:
    """Flexible workers of some jobs, which may be removed for base demands of others.

    It tracks its own removals; `refresh` reports other changes on servers. So a round with hundreds of base
    demands reads each server once, and then only the changed ones.
    """

    def __init__(self, cluster: Cluster, jobs: Iterable[str]) -> None:
        """
        Args:
            jobs: jobs whose flexible workers may be removed, in the order of removal.
        """
        self._cluster = cluster
        self._hosted: dict[str, dict[str, int]] = {}
        """GPUs of the flexible workers of each job, by open server."""
        self._room_of: dict[str, ServerRoom] = {}
        self._servers: dict[ServerRoom, list[str]] = {}
        """Servers with equal room, by id."""
        for job_id in jobs:
            part = cluster.parts_of(job_id).get("flexible")
            if part is not None:
                for server, workers in part.workers.items():
                    if cluster.server(server).is_open:
                        self._hosted.setdefault(server, {})[job_id] = workers * part.gpus_per_worker
        for server in self._hosted:
            self._enter(server)

    def room(self, gpus_per_worker: int, pool: Pool) -> int:
        """Return the most workers of a job, normalised, that fit in a pool without the flexible ones."""
        gains = self._gains(gpus_per_worker, pool)
        rooms = self._cluster.class_rooms(gpus_per_worker, pool)
        most = self._cluster.most_workers
        workers = (min(room + gains.get(factor, 0), most) // factor for factor, room in rooms.items())
        return int(max(workers, default=0))

    def make_room(self, workers: int, gpus_per_worker: int, pool: Pool) -> list[str]:
        """Remove flexible workers until so many workers fit in one class of the pool, the fastest possible.
        Servers where one more worker costs the fewest GPUs come first, ties by server id.

        Args:
            workers: number of workers, normalised.

        Returns:
            The jobs that have lost workers. If even all removals would not make enough room, it is empty.
        """
        gains = self._gains(gpus_per_worker, pool)
        for factor, room in self._cluster.class_rooms(gpus_per_worker, pool).items():
            added = workers * factor - room
            if gains.get(factor, 0) >= added and workers * factor <= self._cluster.most_workers:
                losers = self._clear(self._least_first(gpus_per_worker, pool, factor, added))
                for job_id in losers:
                    for server, count in self._cluster.drop_fractions(job_id).items():
                        self._lose(job_id, server, count)
                return losers
        return []

    def refresh(self, servers: Iterable[str]) -> None:
        """Read servers again on which other workers have been placed or removed."""
        for server in servers:
            if server in self._hosted:
                self._leave(server)
                self._enter(server)

    def _gains(self, gpus_per_worker: int, pool: Pool) -> dict[int, int]:
        """Return the real workers that fit if all flexible ones are removed, by `workers_per_worker`."""
        gains: dict[int, int] = {}
        for server_room, servers in self._servers.items():
            if server_room.pool == pool:
                factor, gain = server_room.workers_per_worker, server_room.gain(gpus_per_worker)
                gains[factor] = gains.get(factor, 0) + gain * len(servers)
        return gains

    def _least_first(
        self, gpus_per_worker: int, pool: Pool, factor: int, added: int
    ) -> list[tuple[str, int]]:
        """Return the servers to make room on, each with the GPUs to be free there."""
        alike: dict[int, list[list[str]]] = {}
        """Servers by the GPUs to be removed for one more worker."""
        for server_room, servers in self._servers.items():
            if server_room[:2] == (pool, factor) and server_room.gain(gpus_per_worker):
                alike.setdefault(gpus_per_worker - server_room.free % gpus_per_worker, []).append(servers)
        chosen: list[tuple[str, int]] = []
        for missing in sorted(alike):
            for server in merge(*alike[missing]):
                if added <= 0:
                    return chosen
                server_room = self._room_of[server]
                count = min(server_room.gain(gpus_per_worker), added)
                chosen.append((server, (server_room.free // gpus_per_worker + count) * gpus_per_worker))
                added -= count
        return chosen

    def _clear(self, servers: Iterable[tuple[str, int]]) -> list[str]:
        """Remove workers until so many GPUs are free, and return the jobs that have lost some."""
        losers: dict[str, None] = {}
        for server, goal_gpus in servers:
            for job_id, held_gpus in list(self._hosted[server].items()):
                missing_gpus = goal_gpus - self._cluster.server(server).free
                if missing_gpus <= 0:
                    break
                size = self._cluster.gpus_per_worker(job_id)
                count = min(held_gpus // size, -(-missing_gpus // size))
                self._cluster.remove_workers(job_id, "flexible", server, count)
                self._lose(job_id, server, count)
                losers[job_id] = None
        return list(losers)

    def _lose(self, job_id: str, server: str, count: int) -> None:
        """Count the real workers that a job has lost on a server."""
        hosted = self._hosted.get(server)
        if hosted is None:
            return  # the server is closed
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
        server_room = ServerRoom(now.pool, now.workers_per_worker, now.free, movable_gpus)
        self._room_of[server] = server_room
        insort(self._servers.setdefault(server_room, []), server)

    def _leave(self, server: str) -> None:
        servers = self._servers[self._room_of.pop(server)]
        del servers[bisect_left(servers, server)]


def leave(cluster: Cluster, job_id: str, server_id: str) -> dict[Kind, int]:
    """Remove all workers of a job from one server, as when the server is given back.

    For each lost base worker, an equally fast flexible worker on another server becomes a base worker: first
    on servers with firm workers, then on servers with the most GPUs in use; ties by id. If the flexible
    workers are on training servers and the base ones on loaned ones, they become the whole base demand if
    they suffice. Remaining base workers then become flexible ones, or are removed if flexible ones are left.

    Returns:
        The real workers lost on this server, by kind.
    """
    parts = cluster.parts_of(job_id)
    lost = {kind: part.workers[server_id] for kind, part in parts.items() if server_id in part.workers}
    base, flexible = parts.get("base"), parts.get("flexible")
    base_count = sum(base.workers.values()) if base else 0
    if "flexible" in lost:
        cluster.remove_workers(job_id, "flexible", server_id, lost["flexible"])
    if base and flexible and class_of(base) == class_of(flexible):
        _make_firm(cluster, job_id, flexible, lost.get("base", 0))
    for kind, count in lost.items():
        if kind != "flexible":
            cluster.remove_workers(job_id, kind, server_id, count)
    if base is None or flexible is None or "base" not in lost:
        return lost
    if may_stand_in(flexible, base) and sum(flexible.workers.values()) >= base_count:
        _stand_in(cluster, job_id, base, flexible, base_count)
    return lost


def _stand_in(cluster: Cluster, job_id: str, base: Part, flexible: Part, count: int) -> None:
    """Replace the base demand by so many flexible workers of another pool."""
    left = dict(base.workers)
    for server_id, workers in left.items():
        cluster.remove_workers(job_id, "base", server_id, workers)
    _make_firm(cluster, job_id, flexible, count)
    if "flexible" not in cluster.parts_of(job_id):
        for server_id, workers in left.items():
            cluster.add_workers(job_id, "flexible", server_id, workers, base.gpus_per_worker)


def _make_firm(cluster: Cluster, job_id: str, flexible: Part, missing: int) -> None:
    """Make so many of a job's flexible workers, or all of them, part of its base demand."""
    for server in sorted(map(cluster.server, flexible.workers), key=_made_firm_first):
        count = min(missing, flexible.workers[server.server_id])
        if count:
            cluster.make_firm(job_id, server.server_id, count)
            missing -= count


def _made_firm_first(server: Server) -> tuple[bool, int, str]:
    """Return the key that sorts servers for making flexible workers on them base ones."""
    return (server.firm_gpus == 0, server.free - server.gpus, server.server_id)
