"""The search for servers to give back that preempt the fewest jobs; `reclaiming.py` says what it looks for.

A job *blocks* a server if it would be preempted by its loss: if it has more workers there than it can still
lose. A server without blockers is free to go.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from solvers.compiled import Bools, Floats, Ints, kernel
from solvers.elastic.lent import HostedJob, Lent

_SAME_COST = 1e-9
"""Costs are sums of fractions in different orders: so near each other, they are the same."""


class Hosting(NamedTuple):
    """Who is where. Servers are numbered in the order of their ids. A job's places, the servers on which it
    has workers, are numbered job by job; `server_places` lists them server by server."""

    job_starts: Ints
    """(jobs + 1,) where each job's places start."""
    place_job: Ints
    place_server: Ints
    place_workers: Ints
    """That count as left."""
    place_gpus: Ints
    server_starts: Ints
    """(servers + 1,) where each server's places start in `server_places`."""
    server_places: Ints
    spare: Ints
    """(jobs,) workers beyond the base demand."""
    hosts: Ints
    """(jobs,) servers that host it, those that may not go too."""
    elsewhere_gpus: Ints
    """(jobs,) on servers that may not go."""


class Progress(NamedTuple):
    """How far a search is."""

    taken: Bools
    """(servers,)"""
    preempted: Bools
    """(jobs,)"""
    lost: Ints
    """(jobs,) workers on the servers taken."""


class Effects(NamedTuple):
    """What it does to take each of the servers, which is not taken yet."""

    jobs: Ints
    """(servers,) that are preempted."""
    freed: Ints
    """(servers,) servers that are free to go then, with this one."""
    damage_gpus: Ints
    """(servers,) that are vacated on servers that stay, as they are not free or not asked for."""


def fewest_preempted(lent: Lent, count: int) -> list[str]:
    """The servers to give back, in no particular order.

    Raises:
        ValueError: a job has fewer workers than its base demand.
    """
    ids = sorted(server.server_id for server in lent.servers)
    if count == 0:
        return []
    taken = _search(_hosting(ids, lent.jobs), count)
    return [ids[number] for number in np.flatnonzero(taken).tolist()]


def _hosting(ids: Sequence[str], jobs: Sequence[HostedJob]) -> Hosting:
    number_of = {server_id: number for number, server_id in enumerate(ids)}
    starts, hosts, spare, elsewhere_gpus = [0], [], [], []
    place_job: list[int] = []
    place_server: list[int] = []
    place_workers: list[int] = []
    place_gpus: list[int] = []
    for index, job in enumerate(jobs):
        total = sum(job.workers.values())
        if total < job.min_workers:
            raise ValueError(f"job {job.job_id} has {total} workers, fewer than its base {job.min_workers}")
        elsewhere = 0
        servers = job.all_workers()
        for server_id, workers in servers.items():
            number = number_of.get(server_id)
            if number is None:
                elsewhere += workers * job.gpus_per_worker
            else:
                place_job.append(index)
                place_server.append(number)
                place_workers.append(job.workers.get(server_id, 0))
                place_gpus.append(workers * job.gpus_per_worker)
        starts.append(len(place_job))
        hosts.append(len(servers))
        spare.append(total - job.min_workers)
        elsewhere_gpus.append(elsewhere)
    servers_of_places = np.array(place_server, np.int64)
    by_server = np.argsort(servers_of_places, kind="stable")
    return Hosting(
        job_starts=np.array(starts, np.int64),
        place_job=np.array(place_job, np.int64),
        place_server=servers_of_places,
        place_workers=np.array(place_workers, np.int64),
        place_gpus=np.array(place_gpus, np.int64),
        server_starts=np.searchsorted(servers_of_places[by_server], np.arange(len(ids) + 1)),
        server_places=by_server,
        spare=np.array(spare, np.int64),
        hosts=np.array(hosts, np.int64),
        elsewhere_gpus=np.array(elsewhere_gpus, np.int64),
    )


@kernel
def _search(hosting: Hosting, count: int) -> Bools:
    """(servers,) the servers that go."""
    by_cost = _begin(hosting, count)
    _pick_by_cost(hosting, by_cost, count)
    first = _refined(hosting, by_cost.preempted, count)
    by_yield = _begin(hosting, count)
    _pick_by_yield(hosting, by_yield, count)
    second = _refined(hosting, by_yield.preempted, count)
    return second.taken if _is_better(hosting, second, first) else first.taken


@kernel
def _begin(hosting: Hosting, count: int) -> Progress:
    """All that costs nobody more than flexible workers, up to so many servers."""
    nobody = np.zeros(hosting.spare.size, np.bool_)
    return _filled(hosting, nobody, _by_use(hosting, nobody), count)


@kernel
def _pick_by_cost(hosting: Hosting, progress: Progress, count: int) -> None:
    """Take the server of least preemption cost, and those that its jobs leave free, until there are enough
    (section 3.4; erratum L1)."""
    left = count - progress.taken.sum()
    while left > 0:
        blocks = _blocks(hosting, progress)
        costs = _costs(hosting, blocks)
        damage = _effects(hosting, progress, blocks, left).damage_gpus
        best = -1
        for server in range(costs.size):
            if progress.taken[server]:
                continue
            if best < 0:
                best = server
            saved = costs[best] - costs[server]
            if saved > _SAME_COST or (saved >= -_SAME_COST and damage[server] < damage[best]):
                best = server
        left -= _preempt(hosting, progress, blocks, best, left)


@kernel
def _pick_by_yield(hosting: Hosting, progress: Progress, count: int) -> None:
    """Take the server that with those that its jobs leave free brings the most for each job preempted, until
    there are enough."""
    left = count - progress.taken.sum()
    while left > 0:
        blocks = _blocks(hosting, progress)
        jobs, freed, damage = _effects(hosting, progress, blocks, left)
        best = -1
        for server in range(jobs.size):
            if progress.taken[server]:
                continue
            if best < 0:
                best = server
            gain = min(freed[server], left) * jobs[best] - min(freed[best], left) * jobs[server]
            if gain > 0 or (gain == 0 and damage[server] < damage[best]):
                best = server
        left -= _preempt(hosting, progress, blocks, best, left)


@kernel
def _refined(hosting: Hosting, preempted: Bools, count: int) -> Progress:
    """So many servers that preempt no other jobs than these, without those that need not be; of servers that
    may go, those that vacate the most GPUs of preempted jobs."""
    needed = preempted.copy()
    use = _by_use(hosting, preempted)
    for job in np.flatnonzero(preempted):
        needed[job] = False
        if _filled(hosting, needed, use, count).taken.sum() < count:
            needed[job] = True
    vacated = np.zeros(use.size, np.int64)
    for place in range(hosting.place_job.size):
        if needed[hosting.place_job[place]]:
            vacated[hosting.place_server[place]] += hosting.place_gpus[place]
    tight = _filled(hosting, needed, use[np.argsort(-vacated[use], kind="mergesort")], count)
    return tight if tight.taken.sum() == count else _filled(hosting, needed, use, count)


@kernel
def _is_better(hosting: Hosting, one: Progress, other: Progress) -> bool:
    """Whether it preempts fewer jobs, or as many with less damage."""
    difference = one.preempted.sum() - other.preempted.sum()
    return difference < 0 or (difference == 0 and _damage_gpus(hosting, one) < _damage_gpus(hosting, other))


@kernel
def _damage_gpus(hosting: Hosting, progress: Progress) -> int:
    """That are vacated on servers that are not taken."""
    total = hosting.elsewhere_gpus[progress.preempted].sum()
    for place in range(hosting.place_job.size):
        if progress.preempted[hosting.place_job[place]] and not progress.taken[hosting.place_server[place]]:
            total += hosting.place_gpus[place]
    return int(total)


@kernel
def _filled(hosting: Hosting, preempted: Bools, order: Ints, count: int) -> Progress:
    """Servers that may go when these jobs are preempted, in an order, up to so many."""
    progress = Progress(np.zeros(order.size, np.bool_), preempted.copy(), np.zeros(preempted.size, np.int64))
    _take_free(hosting, progress, order, count)
    return progress


@kernel
def _preempt(hosting: Hosting, progress: Progress, blocks: Bools, server: int, left: int) -> int:
    """Take a server and preempt its blockers, then whatever is free, up to so many; returns how many."""
    for index in range(hosting.server_starts[server], hosting.server_starts[server + 1]):
        place = hosting.server_places[index]
        if blocks[place]:
            progress.preempted[hosting.place_job[place]] = True
    _take_free(hosting, progress, np.array([server]), 1)
    return 1 + _take_free(hosting, progress, np.arange(progress.taken.size), left - 1)


@kernel
def _take_free(hosting: Hosting, progress: Progress, order: Ints, count: int) -> int:
    """Take servers that nobody blocks, in an order, up to so many; returns how many."""
    starts, places, jobs, workers, spare = (
        hosting.server_starts,
        hosting.server_places,
        hosting.place_job,
        hosting.place_workers,
        hosting.spare,
    )
    taken, preempted, lost = progress
    number = 0
    for server in order:
        if number == count:
            break
        if taken[server]:
            continue
        is_free = True
        for index in range(starts[server], starts[server + 1]):
            job = jobs[places[index]]
            if not preempted[job] and workers[places[index]] > spare[job] - lost[job]:
                is_free = False
                break
        if is_free:
            taken[server] = True
            number += 1
            for index in range(starts[server], starts[server + 1]):
                lost[jobs[places[index]]] += workers[places[index]]
    return number


@kernel
def _blocks(hosting: Hosting, progress: Progress) -> Bools:
    """(places,) whether the job blocks the server."""
    job = hosting.place_job
    can_lose = hosting.spare - progress.lost
    return ~progress.preempted[job] & (hosting.place_workers > can_lose[job])


@kernel
def _costs(hosting: Hosting, blocks: Bools) -> Floats:
    """(servers,) the preemption cost of each (erratum L1)."""
    costs = np.zeros(hosting.server_starts.size - 1)
    for place in range(blocks.size):
        if blocks[place]:
            costs[hosting.place_server[place]] += 1 / hosting.hosts[hosting.place_job[place]]
    return costs


@kernel
def _by_use(hosting: Hosting, preempted: Bools) -> Ints:
    """(servers,) the servers by GPUs of jobs that are not preempted, then by id."""
    gpus = np.zeros(hosting.server_starts.size - 1, np.int64)
    for place in range(hosting.place_job.size):
        if not preempted[hosting.place_job[place]]:
            gpus[hosting.place_server[place]] += hosting.place_gpus[place]
    return np.argsort(gpus, kind="mergesort")


@kernel
def _effects(hosting: Hosting, progress: Progress, blocks: Bools, left: int) -> Effects:
    """What it does to take one more server while `left` are asked for."""
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    job_of, server_of, gpus_of = hosting.place_job, hosting.place_server, hosting.place_gpus
    taken = progress.taken
    blockers = np.zeros(taken.size, np.int64)
    for place in range(blocks.size):
        blockers[server_of[place]] += blocks[place]
    effects = Effects(
        np.zeros(taken.size, np.int64), np.zeros(taken.size, np.int64), np.zeros(taken.size, np.int64)
    )
    touched = np.zeros(taken.size, np.int64)
    gone = np.zeros(taken.size, np.int64)
    vacated = np.zeros(taken.size, np.int64)
    for server in range(taken.size):
        if taken[server]:
            continue
        jobs, reached, damage = 0, 0, 0
        for index in range(starts[server], starts[server + 1]):
            if not blocks[places[index]]:
                continue
            job = job_of[places[index]]
            jobs += 1
            damage += hosting.elsewhere_gpus[job]
            for place in range(job_starts[job], job_starts[job + 1]):
                other = server_of[place]
                if taken[other]:
                    continue
                if vacated[other] == 0:
                    touched[reached] = other
                    reached += 1
                vacated[other] += gpus_of[place]
                gone[other] += blocks[place]
        freed = 0
        for index in range(reached):
            other = touched[index]
            if gone[other] == blockers[other]:
                touched[freed] = vacated[other]
                freed += 1
            else:
                damage += vacated[other]
            vacated[other] = 0
            gone[other] = 0
        if freed > left:
            damage += np.sort(touched[:freed])[: freed - left].sum()
        effects.jobs[server] = jobs
        effects.freed[server] = freed
        effects.damage_gpus[server] = damage
    return effects
