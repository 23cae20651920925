"""Servers of a zone, the workers on them, and best-fit placement (thesis, section 3.5.3).

GPUs and workers of a server are counted as real ones. Numbers of a whole pool, in arguments and results, are
normalised to training GPUs (erratum L4): on a server with `workers_per_worker` k, k workers do the work of
one on a training server.
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from solvers.elastic.cluster_parts import (
    Group,
    Kind,
    Part,
    PlacementTrial,
    Server,
    ServerClass,
    emptied_first,
)
from solvers.elastic.demand import Pool

_NO_PARTS: Mapping[Kind, Part] = MappingProxyType({})


def placing_order(gpus_per_worker: int, arrival: int) -> tuple[int, int]:
    """Return the key that sorts jobs for placement: best fit *decreasing*, ties by arrival."""
    return (-gpus_per_worker, arrival)


class Cluster:
    """Placement of the workers of a zone.

    Placement is best fit: a worker goes to the server in use that has room for it and the least room left
    afterwards; else to an empty one; ties by server id. Loaned servers with flexible workers form a group,
    and those with other workers another. Servers of the first group can be reclaimed without preempting a
    job. A worker is placed in the other group only if no server of its own group and no empty server has
    room. Without `separates_groups`, all servers in use are one group (the naive placement of Table 3.6).
    """

    def __init__(self, separates_groups: bool = True, most_workers: int | None = None) -> None:
        """
        Args:
            most_workers: real workers that a job may have; None for any number.
        """
        self._separates_groups = separates_groups
        self.most_workers = math.inf if most_workers is None else most_workers
        """Real workers that a job may have."""
        self._servers: dict[str, Server] = {}
        self._classes: dict[Pool, dict[int, ServerClass]] = {"training": {}, "loaned": {}}
        """Classes of each pool by `workers_per_worker`, ascending."""
        self._jobs: dict[str, dict[Kind, Part]] = {}
        self._trial: PlacementTrial | None = None

    def add_server(self, server_id: str, pool: Pool, gpus: int, workers_per_worker: int = 1) -> None:
        """Add an empty server.

        Raises:
            ValueError: a server has this id already, or a number is below 1.
        """
        if server_id in self._servers:
            raise ValueError(f"server {server_id} is in the cluster already")
        if gpus < 1 or workers_per_worker < 1:
            raise ValueError(
                f"server {server_id} has {gpus} GPUs and {workers_per_worker} workers per worker: at least 1"
            )
        classes = self._classes[pool]
        if workers_per_worker not in classes:
            classes[workers_per_worker] = ServerClass()
            self._classes[pool] = dict(sorted(classes.items()))
        server = Server(server_id, pool, gpus, workers_per_worker, classes[workers_per_worker], free=gpus)
        self._servers[server_id] = server
        self._count_in(server)

    def remove_server(self, server_id: str) -> None:
        """Remove an empty server.

        Raises:
            KeyError: there is no such server.
            ValueError: it still has workers.
        """
        server = self._servers[server_id]
        if server.parts:
            raise ValueError(f"server {server_id} still has workers of {', '.join(sorted(server.parts))}")
        self._count_out(server)
        del self._servers[server_id]

    def separate_groups(self, separates_groups: bool) -> None:
        """Set whether base and flexible workers are placed on separate groups of servers."""
        if separates_groups == self._separates_groups:
            return
        servers = list(self._servers.values())
        for server in servers:
            self._count_out(server)
        self._separates_groups = separates_groups
        for server in servers:
            self._count_in(server)

    def close(self, server_id: str) -> None:
        """Place nothing new on a server; its workers stay."""
        server = self._servers[server_id]
        self._count_out(server)
        server.is_open = False

    def open(self, server_id: str) -> None:
        """Place on a closed server again."""
        server = self._servers[server_id]
        if not server.is_open:
            server.is_open = True
            self._count_in(server)

    def place(
        self, job_id: str, workers: int, gpus_per_worker: int, pool: Pool, kind: Kind
    ) -> dict[str, int] | None:
        """Place workers of a job, all or none.

        Of several classes of servers in the pool, the fastest that has room for all is used. If the job has
        workers of this kind already, their class is used.

        Args:
            workers: number of workers, normalised.
            gpus_per_worker: GPUs of each worker.

        Returns:
            The real workers by server; None without room for all, or if the job would have too many.

        Raises:
            ValueError: a number is below 1, or the job has workers of this kind of another size or pool.
        """
        if workers < 1 or gpus_per_worker < 1:
            raise ValueError(f"job {job_id}: {workers} workers of {gpus_per_worker} GPUs, at least 1 of each")
        part = self._part_for(job_id, workers, gpus_per_worker, pool, kind)
        if part is None:
            return None
        self._jobs.setdefault(job_id, {})[kind] = part
        placed: dict[str, int] = {}
        missing = workers * part.workers_per_worker
        while missing:
            server = self._best_server(part, kind)
            # With less room left, the server is still the best fit until it is full.
            count = min(missing, server.free // gpus_per_worker)
            self._put(server, job_id, kind, part, count)
            placed[server.server_id] = count
            missing -= count
        return placed

    def remove(self, job_id: str, kind: Kind | None = None) -> dict[str, int]:
        """Remove a job's workers, all or those of one kind, and return the real workers by server."""
        removed: dict[str, int] = {}
        for each, part in list(self._jobs.get(job_id, {}).items()):
            if kind in (None, each):
                for server_id, count in list(part.workers.items()):
                    self._remove(self._servers[server_id], job_id, each, count)
                    removed[server_id] = removed.get(server_id, 0) + count
        return removed

    def shrink(self, job_id: str, workers: int) -> dict[str, int]:
        """Remove flexible workers of a job so that servers become empty: first from closed servers, then from
        those with flexible workers only, in the order of their GPUs in use; ties by id.

        Args:
            workers: number of workers, normalised.

        Returns:
            The real workers by server.

        Raises:
            ValueError: the job has fewer.
        """
        part = self._jobs.get(job_id, {}).get("flexible")
        number = workers * (part.workers_per_worker if part else 1)
        have = sum(part.workers.values()) if part else 0
        if part is None or not 0 <= number <= have:
            raise ValueError(f"job {job_id} has {have} flexible workers: {number} cannot be removed")
        return self._remove_flexible(job_id, part, number)

    def drop_fractions(self, job_id: str) -> dict[str, int]:
        """Remove flexible workers that are too few for the work of one on a training server, and return the
        real workers by server."""
        part = self._jobs.get(job_id, {}).get("flexible")
        if part is None:
            return {}
        return self._remove_flexible(job_id, part, sum(part.workers.values()) % part.workers_per_worker)

    def add_workers(
        self, job_id: str, kind: Kind, server_id: str, workers: int, gpus_per_worker: int
    ) -> None:
        """Add real workers of a job to a server, which has room for them."""
        server = self._servers[server_id]
        parts = self._jobs.setdefault(job_id, {})
        if kind not in parts:
            parts[kind] = Part(server.pool, server.workers_per_worker, gpus_per_worker)
        self._put(server, job_id, kind, parts[kind], workers)

    def remove_workers(self, job_id: str, kind: Kind, server_id: str, workers: int) -> None:
        """Remove so many real workers of a job from a server."""
        self._remove(self._servers[server_id], job_id, kind, workers)

    def make_firm(self, job_id: str, server_id: str, workers: int) -> None:
        """Make so many real flexible workers of a job on a server part of its base demand, which is in that
        server's class or nowhere."""
        server, parts = self._servers[server_id], self._jobs[job_id]
        flexible = parts["flexible"]
        if "base" not in parts:
            parts["base"] = Part(flexible.pool, flexible.workers_per_worker, flexible.gpus_per_worker)
        self._remove(server, job_id, "flexible", workers)
        self._put(server, job_id, "base", parts["base"], workers)

    def begin_trial(self) -> None:
        """Begin a trial: later placements and removals can be undone."""
        self._trial = PlacementTrial()

    def end_trial(self, is_kept: bool) -> None:
        """Keep the placements and removals of the trial, or undo all of them."""
        trial, self._trial = self._trial, None
        if trial is None or is_kept:
            return
        for server_id, (free, firm_gpus, parts) in trial.servers.items():
            server = self._servers[server_id]
            self._count_out(server)
            server.free, server.firm_gpus, server.parts = free, firm_gpus, parts
            self._count_in(server)
        for job_id, kept in trial.jobs.items():
            for _, part, workers in kept:
                part.workers = workers
            if kept:
                self._jobs[job_id] = {kind: part for kind, part, _ in kept}
            else:
                self._jobs.pop(job_id, None)

    def free_gpus(self, pool: Pool) -> float:
        """Return the idle GPUs of the pool's open servers, in training GPUs."""
        return sum(each.free_gpus / factor for factor, each in self._classes[pool].items())

    def room(self, gpus_per_worker: int, pool: Pool) -> int:
        """Return the most workers, normalised, that one `place` can place of a job without workers there."""
        return _most_workers(self._classes[pool], gpus_per_worker, self.most_workers)

    def class_rooms(self, gpus_per_worker: int, pool: Pool) -> dict[int, int]:
        """Return the real workers that fit, by the `workers_per_worker` of a pool's servers, ascending."""
        return {factor: each.room(gpus_per_worker) for factor, each in self._classes[pool].items()}

    def flexible_room(self, job_id: str, gpus_per_worker: int, pool: Pool) -> int:
        """Return the most flexible workers, normalised, that `place` can place of a job."""
        parts = self._jobs.get(job_id, {})
        more = self._more_workers(parts)
        classes = self._classes[pool]
        if "flexible" in parts:
            factor = parts["flexible"].workers_per_worker
            classes = {factor: classes[factor]}
        return _most_workers(classes, gpus_per_worker, more)

    def servers(self, pool: Pool | None = None) -> list[str]:
        """Return all servers, or those of a pool, by id."""
        return sorted(each.server_id for each in self._servers.values() if pool in (None, each.pool))

    def server(self, server_id: str) -> Server:
        """Return a server, to be read at once: it changes with its workers."""
        return self._servers[server_id]

    def jobs(self) -> list[str]:
        """Return the jobs that have workers, in the order of their first placement."""
        return list(self._jobs)

    def parts_of(self, job_id: str) -> Mapping[Kind, Part]:
        """Return the parts of a job by kind, to be read at once: they change with its workers."""
        return self._jobs.get(job_id, _NO_PARTS)

    def workers_of(self, job_id: str) -> dict[Kind, dict[str, int]]:
        """Return the real workers of a job, by kind and server."""
        return {kind: dict(part.workers) for kind, part in self._jobs.get(job_id, {}).items()}

    def normalised_workers(self, job_id: str, kind: Kind) -> int:
        part = self._jobs.get(job_id, {}).get(kind)
        return sum(part.workers.values()) // part.workers_per_worker if part else 0

    def pool_of_workers(self, job_id: str, kind: Kind) -> Pool | None:
        """Return the pool of a job's workers of a kind; None if it has none."""
        part = self._jobs.get(job_id, {}).get(kind)
        return part.pool if part else None

    def gpus_per_worker(self, job_id: str) -> int:
        """Return the GPUs per worker of a job that has workers."""
        return next(iter(self._jobs[job_id].values())).gpus_per_worker

    def state(self) -> dict[str, Any]:
        """Return the state without the servers themselves, in types that msgpack writes."""
        return {
            "closed": sorted(each.server_id for each in self._servers.values() if not each.is_open),
            "jobs": [
                [job_id, kind, part.gpus_per_worker, part.workers]
                for job_id, parts in self._jobs.items()
                for kind, part in parts.items()
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of another cluster of the same servers; this one must be empty and open."""
        for job_id, kind, gpus_per_worker, workers in state["jobs"]:
            for server_id, count in workers.items():
                self.add_workers(job_id, kind, server_id, count, gpus_per_worker)
        for server_id in state["closed"]:
            self.close(server_id)

    def _part_for(
        self, job_id: str, workers: int, gpus_per_worker: int, pool: Pool, kind: Kind
    ) -> Part | None:
        """Return the part that the workers join; None without room for all."""
        parts = self._jobs.get(job_id, {})
        part, more = parts.get(kind), self._more_workers(parts)
        if part is None:
            for factor, servers in self._classes[pool].items():
                if workers * factor <= more and servers.room(gpus_per_worker) >= workers * factor:
                    return Part(pool, factor, gpus_per_worker)
            return None
        if (part.pool, part.gpus_per_worker) != (pool, gpus_per_worker):
            raise ValueError(
                f"job {job_id} has {kind} workers of {part.gpus_per_worker} GPUs in pool {part.pool}: they "
                f"cannot be joined by ones of {gpus_per_worker} in pool {pool}"
            )
        room = min(self._classes[pool][part.workers_per_worker].room(gpus_per_worker), more)
        return part if room >= workers * part.workers_per_worker else None

    def _more_workers(self, parts: Mapping[Kind, Part]) -> float:
        """Return the number of real workers that a job may get beyond its present ones."""
        return self.most_workers - sum(sum(part.workers.values()) for part in parts.values())

    def _best_server(self, part: Part, kind: Kind) -> Server:
        """Return the server of the next worker; there is room for it."""
        servers = self._classes[part.pool][part.workers_per_worker]
        for group in self._preferred(part.pool, kind):
            server_id = servers.best_fit(group, part.gpus_per_worker)
            if server_id is not None:
                return self._servers[server_id]
        raise AssertionError(f"no room for a worker of {part.gpus_per_worker} GPUs, where room was counted")

    def _preferred(self, pool: Pool, kind: Kind) -> Iterator[Group]:
        """Yield groups of servers in the order in which a worker tries them."""
        own: Group = "flexible" if kind == "flexible" and self._keeps_apart(pool) else "firm"
        yield own
        yield "empty"
        yield "firm" if own == "flexible" else "flexible"

    def _keeps_apart(self, pool: Pool) -> bool:
        return self._separates_groups and pool == "loaned"

    def _group_of(self, server: Server) -> Group:
        if not server.parts:
            return "empty"
        return "flexible" if server.firm_gpus == 0 and self._keeps_apart(server.pool) else "firm"

    def _remove_flexible(self, job_id: str, part: Part, number: int) -> dict[str, int]:
        """Remove so many real workers; see `shrink`."""
        removed: dict[str, int] = {}
        for server in sorted((self._servers[server_id] for server_id in part.workers), key=emptied_first):
            count = min(number, part.workers[server.server_id])
            if count == 0:
                break
            self._remove(server, job_id, "flexible", count)
            removed[server.server_id] = count
            number -= count
        return removed

    def _put(self, server: Server, job_id: str, kind: Kind, part: Part, count: int) -> None:
        if self._trial is not None:
            self._trial.keep(server, job_id, self._jobs[job_id])
        if server.server_id not in part.workers:
            part.workers[server.server_id] = 0
            server.parts[job_id] = server.parts.get(job_id, 0) + 1
        part.workers[server.server_id] += count
        self._use(server, kind, count * part.gpus_per_worker)

    def _remove(self, server: Server, job_id: str, kind: Kind, count: int) -> None:
        if self._trial is not None:
            self._trial.keep(server, job_id, self._jobs[job_id])
        parts = self._jobs[job_id]
        part = parts[kind]
        part.workers[server.server_id] -= count
        if part.workers[server.server_id] == 0:
            del part.workers[server.server_id]
            server.parts[job_id] -= 1
            if server.parts[job_id] == 0:
                del server.parts[job_id]
            if not part.workers:
                del parts[kind]
                if not parts:
                    del self._jobs[job_id]
        self._use(server, kind, -count * part.gpus_per_worker)

    def _use(self, server: Server, kind: Kind, gpus: int) -> None:
        """Add to the GPUs of a server that workers of a kind use."""
        group, free = server.group, server.free
        server.free -= gpus
        if kind != "flexible":
            server.firm_gpus += gpus
        if server.is_open:
            server.group = self._group_of(server)
            server.peers.move(server.server_id, (group, free), (server.group, server.free))

    def _count_in(self, server: Server) -> None:
        if server.is_open:
            server.group = self._group_of(server)
            server.peers.add(server.server_id, server.group, server.free)

    @staticmethod
    def _count_out(server: Server) -> None:
        if server.is_open:
            server.peers.drop(server.server_id, server.group, server.free)


def _most_workers(classes: Mapping[int, ServerClass], gpus_per_worker: int, most_real: float) -> int:
    """Return the most workers, normalised, that fit on servers of one class, at most so many real ones."""
    rooms = (min(each.room(gpus_per_worker), most_real) // factor for factor, each in classes.items())
    return int(max(rooms, default=0))
