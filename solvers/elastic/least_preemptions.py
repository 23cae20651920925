"""The search for servers to give back that preempt the fewest jobs; `reclaiming.py` says what it looks for.

A job *blocks* a server if it would be preempted by its loss: if it has more workers there than it can still
lose. A server without blockers is free to go.
"""

from typing import NamedTuple

import numpy as np

from solvers.compiled import Bools, Floats, Ints, kernel
from solvers.elastic.hosting import Hosting, hosting_of
from solvers.elastic.lent import Lent

_SAME_COST = 1e-9
"""Costs are sums of fractions in different orders: so near each other, they are the same."""

MOST_STEPS = 10_000_000
"""Of each of the two searches, and of each refinement. A step looks at a job on a server."""


class Progress(NamedTuple):
    """How far a search is."""

    taken: Bools
    """(servers,)"""
    preempted: Bools
    """(jobs,)"""
    lost: Ints
    """(jobs,) workers on the servers taken."""


class Effects(NamedTuple):
    """What it does to take each of the servers that are not taken yet."""

    jobs: Ints
    """(servers,) that are preempted."""
    freed: Ints
    """(servers,) servers that are free to go then, with this one."""
    damage_gpus: Ints
    """(servers,) that are vacated on servers that stay, as they are not free or not asked for."""
    blocks: Bools
    """(places,) which jobs blocked which servers when this was counted."""
    is_known: Bools
    """(servers,) whether it has been."""


def fewest_preempted(lent: Lent, count: int) -> list[str]:
    """The servers to give back, in no particular order.

    A search that has used up its steps takes the rest of the servers in the order of their costs by then, and
    whatever the jobs preempted leave free. A refinement spares fewer jobs.

    Raises:
        ValueError: a job has fewer workers than its base demand.
    """
    hosting, ids = hosting_of(lent)
    return [ids[number] for number in np.flatnonzero(_search(hosting, count, MOST_STEPS)).tolist()]


@kernel
def _search(hosting: Hosting, count: int, most_steps: int) -> Bools:
    """(servers,) the servers that go."""
    by_cost = _begin(hosting, count)
    _pick_by_cost(hosting, by_cost, count, most_steps)
    first = _refined(hosting, by_cost, count, most_steps)
    by_yield = _begin(hosting, count)
    _pick_by_yield(hosting, by_yield, count, most_steps)
    second = _refined(hosting, by_yield, count, most_steps)
    return second.taken if _is_better(hosting, second, first) else first.taken


@kernel
def _begin(hosting: Hosting, count: int) -> Progress:
    """All that costs nobody more than flexible workers, up to so many servers."""
    nobody = np.zeros(hosting.spare.size, np.bool_)
    return _filled(hosting, nobody, _by_use(hosting, nobody), count)


@kernel
def _pick_by_cost(hosting: Hosting, progress: Progress, count: int, most_steps: int) -> int:
    """Take the server of least preemption cost, and those that its jobs leave free, until there are enough
    (section 3.4; erratum L1). Returns the steps that it took."""
    effects = _no_effects(hosting)
    damage = effects.damage_gpus
    left, steps = count - progress.taken.sum(), 0
    while left > 0:
        steps = _update(hosting, progress, left, effects, steps, most_steps)
        if steps > most_steps:
            _pick_the_rest(hosting, progress, effects.blocks, left)
            break
        costs = _costs(hosting, effects.blocks)
        best = -1
        for server in range(costs.size):
            if progress.taken[server]:
                continue
            if best < 0:
                best = server
            saved = costs[best] - costs[server]
            if saved > _SAME_COST or (saved >= -_SAME_COST and damage[server] < damage[best]):
                best = server
        left -= _preempt(hosting, progress, effects.blocks, best, left)
    return steps


@kernel
def _pick_by_yield(hosting: Hosting, progress: Progress, count: int, most_steps: int) -> int:
    """Take the server that with those that its jobs leave free brings the most for each job preempted, until
    there are enough. Returns the steps that it took."""
    effects = _no_effects(hosting)
    jobs, freed, damage = effects.jobs, effects.freed, effects.damage_gpus
    left, steps = count - progress.taken.sum(), 0
    while left > 0:
        steps = _update(hosting, progress, left, effects, steps, most_steps)
        if steps > most_steps:
            _pick_the_rest(hosting, progress, effects.blocks, left)
            break
        best = -1
        for server in range(jobs.size):
            if progress.taken[server]:
                continue
            if best < 0:
                best = server
            gain = min(freed[server], left) * jobs[best] - min(freed[best], left) * jobs[server]
            if gain > 0 or (gain == 0 and damage[server] < damage[best]):
                best = server
        left -= _preempt(hosting, progress, effects.blocks, best, left)
    return steps


@kernel
def _pick_the_rest(hosting: Hosting, progress: Progress, blocks: Bools, left: int) -> None:
    """Take so many servers in the order of their costs, which are not counted again, and before each those
    that the jobs preempted so far leave free."""
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    for server in np.argsort(_costs(hosting, blocks), kind="mergesort"):
        if left == 0:
            break
        if progress.taken[server]:
            continue
        fresh = np.full(starts[server + 1] - starts[server], -1, np.int64)
        for index in range(starts[server], starts[server + 1]):
            place = places[index]
            job = hosting.place_job[place]
            lacks = hosting.place_workers[place] > hosting.spare[job] - progress.lost[job]
            if lacks and not progress.preempted[job]:
                progress.preempted[job] = True
                fresh[index - starts[server]] = job
        left -= _take_free(hosting, progress, np.array([server]), 1)
        for job in fresh:
            if job >= 0:
                others = hosting.place_server[job_starts[job] : job_starts[job + 1]]
                left -= _take_free(hosting, progress, others, left)


@kernel
def _refined(hosting: Hosting, found: Progress, count: int, most_steps: int) -> Progress:
    """So many servers that preempt no other jobs than those found, without those that need not be; of servers
    that may go, those that vacate the most GPUs of preempted jobs. What was found stays where the order of
    this search brings fewer: which servers an elastic job can lose depends on which it has lost before."""
    needed = found.preempted.copy()
    use = _by_use(hosting, found.preempted)
    steps = 0
    for job in np.flatnonzero(found.preempted):
        steps += hosting.place_job.size + use.size
        if steps > most_steps:
            break
        needed[job] = False
        if _filled(hosting, needed, use, count).taken.sum() < count:
            needed[job] = True
    vacated = np.zeros(use.size, np.int64)
    for place in range(hosting.place_job.size):
        if needed[hosting.place_job[place]]:
            vacated[hosting.place_server[place]] += hosting.place_gpus[place]
    tight = _filled(hosting, needed, use[np.argsort(-vacated[use], kind="mergesort")], count)
    if tight.taken.sum() == count:
        return tight
    loose = _filled(hosting, needed, use, count)
    return loose if loose.taken.sum() == count else found


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
def _no_effects(hosting: Hosting) -> Effects:
    """Nothing is counted yet."""
    servers, places = hosting.server_starts.size - 1, hosting.place_job.size
    return Effects(
        np.zeros(servers, np.int64),
        np.zeros(servers, np.int64),
        np.zeros(servers, np.int64),
        np.zeros(places, np.bool_),
        np.zeros(servers, np.bool_),
    )


@kernel
def _update(
    hosting: Hosting, progress: Progress, left: int, effects: Effects, steps: int, most_steps: int
) -> int:
    """Count the effects that have changed, while `left` servers are asked for.

    Returns:
        The steps so far; more than the most if they have run out, and not all effects are counted.
    """
    steps += hosting.place_job.size + hosting.server_starts.size
    blockers, forgotten = _update_blocks(hosting, progress, effects)
    steps += forgotten
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    job_of, server_of, gpus_of = hosting.place_job, hosting.place_server, hosting.place_gpus
    taken, blocks = progress.taken, effects.blocks
    touched = np.zeros(taken.size, np.int64)
    gone = np.zeros(taken.size, np.int64)
    vacated = np.zeros(taken.size, np.int64)
    for server in range(taken.size):
        # Of more servers than are asked for, some are damage: how many, changes with each pick.
        if taken[server] or (effects.is_known[server] and effects.freed[server] <= left):
            continue
        jobs, reached, damage_gpus = 0, 0, 0
        for index in range(starts[server], starts[server + 1]):
            if not blocks[places[index]]:
                continue
            job = job_of[places[index]]
            jobs += 1
            damage_gpus += hosting.elsewhere_gpus[job]
            steps += job_starts[job + 1] - job_starts[job]
            if steps > most_steps:
                return steps
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
                damage_gpus += vacated[other]
            vacated[other] = 0
            gone[other] = 0
        steps += max(freed - left, 0) * freed
        for _ in range(freed - left):
            least = np.argmin(touched[:freed])
            damage_gpus += touched[least]
            touched[least] = np.iinfo(np.int64).max
        effects.jobs[server] = jobs
        effects.freed[server] = freed
        effects.damage_gpus[server] = damage_gpus
        effects.is_known[server] = True
    return steps


@kernel
def _update_blocks(hosting: Hosting, progress: Progress, effects: Effects) -> tuple[Ints, int]:
    """Find out who blocks what, and forget the effects that change with it.

    Returns:
        (servers,) how many jobs block each, and the steps that it took to forget.
    """
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    job_of, server_of, workers = hosting.place_job, hosting.place_server, hosting.place_workers
    blockers = np.zeros(progress.taken.size, np.int64)
    has_changed = np.zeros(progress.taken.size, np.bool_)
    for place in range(job_of.size):
        job = job_of[place]
        blocks = not progress.preempted[job] and workers[place] > hosting.spare[job] - progress.lost[job]
        blockers[server_of[place]] += blocks
        has_changed[server_of[place]] |= blocks != effects.blocks[place]
        effects.blocks[place] = blocks
    is_forgotten = np.zeros(hosting.spare.size, np.bool_)
    steps = 0
    for server in range(has_changed.size):
        if has_changed[server]:
            # What a server's loss frees depends on who else is where its jobs are.
            for index in range(starts[server], starts[server + 1]):
                job = job_of[places[index]]
                if is_forgotten[job]:
                    continue
                is_forgotten[job] = True
                steps += job_starts[job + 1] - job_starts[job]
                for place in range(job_starts[job], job_starts[job + 1]):
                    effects.is_known[server_of[place]] = False
    return blockers, steps
