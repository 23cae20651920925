"""What may be given back, who is on it, and what it does to give some of it back (thesis, section 3.4).

A job loses its workers on the servers that go. It is preempted if those that are left are fewer than its base
demand, and then leaves all its servers; otherwise it is scaled in and goes on.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

from solvers.elastic.cluster import Cluster
from solvers.elastic.cluster_parts import class_of, may_stand_in

_NONE: Mapping[str, int] = MappingProxyType({})


class LentServer(NamedTuple):
    """One that may be given back."""

    server_id: str
    gpus: int


class HostedJob(NamedTuple):
    """A job with workers on servers on loan."""

    job_id: str
    min_workers: int
    """It is preempted if it is left with fewer."""
    gpus_per_worker: int
    workers: Mapping[str, int]
    """By server; those on servers that may not be given back are among them."""
    spare_workers: Mapping[str, int] = _NONE
    """Further ones that do not count as workers that are left: flexible ones in another pool, or not as
    fast."""
    may_stand_in: bool = False
    """Whether spare ones become the base demand if it is lost and they are enough."""

    def all_workers(self) -> Mapping[str, int]:
        """Of both sorts, by server."""
        if not self.spare_workers:
            return self.workers
        servers = dict.fromkeys((*self.workers, *self.spare_workers))
        return {each: self.workers.get(each, 0) + self.spare_workers.get(each, 0) for each in servers}

    def is_preempted_without(self, servers: Collection[str]) -> bool:
        """Whether what is left without these servers is too little."""
        left = sum(count for each, count in self.workers.items() if each not in servers)
        return left < self.min_workers and not (
            self.may_stand_in and self.spare_outside(servers) >= self.min_workers
        )

    def spare_outside(self, servers: Collection[str]) -> int:
        """Spare workers on other servers."""
        return sum(count for each, count in self.spare_workers.items() if each not in servers)


@dataclass(frozen=True, slots=True)
class Lent:
    """What may be given back, and who is on it."""

    servers: tuple[LentServer, ...]
    jobs: tuple[HostedJob, ...]


@dataclass(frozen=True, slots=True)
class Reclaim:
    """What is given back, and what that does to jobs."""

    servers: tuple[str, ...]
    """Those that cost nobody more than flexible workers first, by what they cost, then by id."""
    harmless: int
    """How many those are."""
    preempted: tuple[str, ...]
    """By id."""
    scaled_in: Mapping[str, Mapping[str, int]]
    """Workers that are lost by jobs that go on, by server."""
    collateral_damage: float
    """GPUs that are vacated on servers that stay, over those of the servers that go."""


def reclaim_of(lent: Lent, chosen: Collection[str]) -> Reclaim:
    """What it does to give these servers back."""
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
    """The picture of these servers of a cluster, and of all jobs on them. A job that workers on other servers
    may stand in for has no base demand there that it could not lose."""
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
    """A job of a cluster, as what it loses with its servers."""
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
