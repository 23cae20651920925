"""Servers that may be given back, jobs on them, and the effects of giving some back (thesis, section 3.4).

A job loses its workers on the servers given back. It is preempted if fewer than its base demand are left, and
then leaves all its servers; otherwise it is scaled in and continues.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from solvers.compiled import Ints
from solvers.elastic.cluster import Cluster
from solvers.elastic.cluster_parts import class_of, may_stand_in

_NONE: Mapping[str, int] = MappingProxyType({})


class LentServer(NamedTuple):
    """Server that may be given back."""

    server_id: str
    gpus: int


class HostedJob(NamedTuple):
    """Job with workers on servers on loan."""

    job_id: str
    min_workers: int
    """Least workers; with fewer, it is preempted."""
    gpus_per_worker: int
    workers: Mapping[str, int]
    """Workers by server, with those on servers that may not be given back."""
    spare_workers: Mapping[str, int] = _NONE
    """Further workers that do not count towards the base demand, by server: flexible ones in another pool, or
    of another speed."""
    may_stand_in: bool = False
    """Whether spare workers become the base demand if it is lost and they suffice."""

    def all_workers(self) -> Mapping[str, int]:
        """Return the workers of both sorts, by server."""
        if not self.spare_workers:
            return self.workers
        servers = dict.fromkeys((*self.workers, *self.spare_workers))
        return {each: self.workers.get(each, 0) + self.spare_workers.get(each, 0) for each in servers}

    def is_preempted_without(self, servers: Collection[str]) -> bool:
        """Return whether too few workers are left without these servers."""
        left = sum(count for each, count in self.workers.items() if each not in servers)
        return left < self.min_workers and not (
            self.may_stand_in and self.spare_outside(servers) >= self.min_workers
        )

    def spare_outside(self, servers: Collection[str]) -> int:
        """Return the number of spare workers on other servers."""
        return sum(count for each, count in self.spare_workers.items() if each not in servers)


@dataclass(frozen=True, slots=True)
class Lent:
    """Servers that may be given back, and the jobs on them."""

    servers: tuple[LentServer, ...]
    jobs: tuple[HostedJob, ...]


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Servers given back, and the effects on jobs."""

    servers: tuple[str, ...]
    """Servers whose loss costs only flexible workers first; by cost, then by id."""
    harmless: int
    """Number of servers whose loss costs only flexible workers."""
    preempted: tuple[str, ...]
    """Preempted jobs, by id."""
    scaled_in: Mapping[str, Mapping[str, int]]
    """Workers lost by jobs that continue, by job and server."""
    collateral_damage: float
    """GPUs vacated on servers that stay, over those of the servers given back."""


def reclaim_of(lent: Lent, chosen: Collection[str]) -> Reclaim:
    """Return the effects of giving these servers back."""
    chosen = dict.fromkeys(chosen)
    asked_gpus = sum(server.gpus for server in lent.servers if server.server_id in chosen)
    preempted: list[str] = []
    scaled_in: dict[str, dict[str, int]] = {}
    vacated_gpus = 0
    hurting: set[str] = set()
    lost_gpus = dict.fromkeys(chosen, 0)
    for job in lent.jobs:
        workers = job.all_workers()
        if lost_gpus.keys().isdisjoint(workers):
            continue
        lost = {each: count for each, count in workers.items() if each in lost_gpus}
        if job.is_preempted_without(lost_gpus):
            preempted.append(job.job_id)
            hurting.update(lost)
            vacated_gpus += job.gpus_per_worker * (sum(workers.values()) - sum(lost.values()))
        else:
            scaled_in[job.job_id] = lost
            for each, count in lost.items():
                lost_gpus[each] += count * job.gpus_per_worker
    order = sorted(chosen, key=lambda each: (each in hurting, lost_gpus[each], each))
    return Reclaim(
        servers=tuple(order),
        harmless=sum(each not in hurting for each in order),
        preempted=tuple(sorted(preempted)),
        scaled_in=dict(sorted(scaled_in.items())),
        collateral_damage=vacated_gpus / asked_gpus if asked_gpus else 0.0,
    )


def lent_by(cluster: Cluster, servers: Sequence[str]) -> Lent:
    """Return these servers of a cluster, and all jobs on them. If workers on other servers can replace a
    job's base demand, it has no base demand here that it could not lose."""
    going = frozenset(servers)
    places = list(map(cluster.server, servers))
    jobs = dict.fromkeys(chain.from_iterable(place.jobs for place in places))
    return Lent(
        servers=tuple(LentServer(place.server_id, place.gpus) for place in places),
        jobs=tuple(_to_give_back(hosted_job(cluster, job_id), going) for job_id in jobs),
    )


def _to_give_back(job: HostedJob, servers: Collection[str]) -> HostedJob:
    is_safe = job.may_stand_in and job.spare_outside(servers) >= job.min_workers
    return job._replace(min_workers=0) if is_safe else job


def hosted_job(cluster: Cluster, job_id: str) -> HostedJob:
    """Return a job of a cluster with the workers that it would lose with its servers."""
    parts = cluster.parts_of(job_id)
    firm = parts["inelastic"] if "inelastic" in parts else parts["base"]
    workers, spare, stands_in = firm.workers.copy(), _NONE, False
    min_workers = sum(workers.values())
    flexible = parts.get("flexible")
    if flexible is not None and class_of(flexible) == class_of(firm):
        for server_id, count in flexible.workers.items():
            workers[server_id] = workers.get(server_id, 0) + count
    elif flexible is not None:
        spare = flexible.workers.copy()
        stands_in = may_stand_in(flexible, firm)
    return HostedJob(job_id, min_workers, firm.gpus_per_worker, workers, spare, stands_in)


class Hosting(NamedTuple):
    """Jobs on servers. Servers are numbered in the order of their ids. A job's places, the servers on which
    it has workers, are numbered job by job; `server_places` lists them server by server."""

    job_starts: Ints
    """Index at which each job's places start, (jobs + 1,)."""
    place_job: Ints
    place_server: Ints
    place_workers: Ints
    """Workers that count towards the base demand, (places,)."""
    place_gpus: Ints
    server_starts: Ints
    """Index at which each server's places start in `server_places`, (servers + 1,)."""
    server_places: Ints
    spare: Ints
    """Workers beyond the base demand, (jobs,)."""
    hosts: Ints
    """Number of servers that host each job, with those that may not be reclaimed, (jobs,)."""
    elsewhere_gpus: Ints
    """GPUs on servers that may not be reclaimed, (jobs,)."""


def hosting_of(lent: Lent) -> tuple[Hosting, list[str]]:
    """Return the arrays, and the ids of the numbered servers.

    Raises:
        ValueError: a job has fewer workers than its base demand.
    """
    ids = sorted(server.server_id for server in lent.servers)
    number_of = {server_id: number for number, server_id in enumerate(ids)}
    everywhere = [job.all_workers() for job in lent.jobs]
    hosts = [len(workers) for workers in everywhere]
    # Servers that may not be reclaimed are -1.
    servers = list(map(number_of.get, chain.from_iterable(everywhere), repeat(-1)))
    workers = list(chain.from_iterable(each.values() for each in everywhere))
    counted = [
        count
        for job, each in zip(lent.jobs, everywhere, strict=True)
        for count in (map(job.workers.get, each, repeat(0)) if job.spare_workers else each.values())
    ]
    job_of = np.repeat(np.arange(len(hosts)), hosts)
    server_of, counts = np.array(servers, np.int64), np.array(counted, np.int64)
    gpus = (
        np.array(workers, np.int64) * np.array([job.gpus_per_worker for job in lent.jobs], np.int64)[job_of]
    )
    spare = _sums(counts, job_of, len(hosts)) - np.array([job.min_workers for job in lent.jobs], np.int64)
    if np.any(spare < 0):
        job = lent.jobs[int(np.argmax(spare < 0))]
        total = sum(job.workers.values())
        raise ValueError(f"job {job.job_id} has {total} workers, fewer than its base {job.min_workers}")
    here = server_of >= 0
    place_job, place_server = job_of[here], server_of[here]
    by_server = np.argsort(place_server, kind="stable")
    return Hosting(
        job_starts=np.searchsorted(place_job, np.arange(len(hosts) + 1)),
        place_job=place_job,
        place_server=place_server,
        place_workers=counts[here],
        place_gpus=gpus[here],
        server_starts=np.searchsorted(place_server[by_server], np.arange(len(ids) + 1)),
        server_places=by_server,
        spare=spare,
        hosts=np.array(hosts, np.int64),
        elsewhere_gpus=_sums(gpus[~here], job_of[~here], len(hosts)),
    ), ids


def _sums(values: Ints, job_of: Ints, jobs: int) -> Ints:
    """Return the sum of the values of each job, (jobs,)."""
    sums = np.zeros(jobs, np.int64)
    np.add.at(sums, job_of, values)
    return sums
