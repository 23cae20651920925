"""Search for reclaimed servers that preempt the fewest jobs; `reclaiming.py` states the objective.

A job *blocks* a server if the loss of the server would preempt it: if it has more workers there than it can
still lose. A server without blockers is free.
"""

from typing import NamedTuple

import numpy as np

from solvers.compiled import Bools, Floats, Ints, kernel
from solvers.elastic.lent import Hosting, Lent, hosting_of

_SAME_COST = 1e-9
"""Tolerance within which costs are equal: they are sums of fractions in different orders."""

MOST_STEPS = 10_000_000
"""Step budget of each of the two searches and of each refinement. A step examines a job on a server."""


class SearchState(NamedTuple):
    chosen: Bools
    """Servers chosen, (servers,)."""
    preempted: Bools
    """Jobs preempted, (jobs,)."""
    lost: Ints
    """Workers on the servers chosen, (jobs,)."""


class Effects(NamedTuple):
    """Effects of taking each of the servers that are not chosen yet."""

    jobs: Ints
    """Jobs preempted, (servers,)."""
    freed: Ints
    """Servers that are free afterwards, with this one, (servers,)."""
    damage_gpus: Ints
    """GPUs vacated on servers that stay, because they are not free or not requested, (servers,)."""
    blocks: Bools
    """Places whose job blocked the server when the effects were counted, (places,)."""
    is_known: Bools
    """Whether the effects of a server are counted, (servers,)."""


def fewest_preempted(lent: Lent, count: int) -> list[str]:
    """Return the servers to give back, in no particular order.

    When a search has used up its steps, it adds the remaining servers in the order of their last costs, and
    the servers that preempted jobs leave free. A refinement without steps spares fewer jobs.

    Raises:
        ValueError: a job has fewer workers than its base demand.
    """
    hosting, ids = hosting_of(lent)
    return [ids[number] for number in np.flatnonzero(_search(hosting, count, MOST_STEPS)).tolist()]


@kernel
def _search(hosting: Hosting, count: int, most_steps: int) -> Bools:
    """Return whether each server is chosen, (servers,)."""
    by_cost = _begin(hosting, count)
    _pick_by_cost(hosting, by_cost, count, most_steps)
    first = _refined(hosting, by_cost, count, most_steps)
    by_yield = _begin(hosting, count)
    _pick_by_yield(hosting, by_yield, count, most_steps)
    second = _refined(hosting, by_yield, count, most_steps)
    return second.chosen if _is_better(hosting, second, first) else first.chosen


@kernel
def _begin(hosting: Hosting, count: int) -> SearchState:
    """Take servers whose loss costs only flexible workers, up to `count`."""
    none_preempted = np.zeros(hosting.spare.size, np.bool_)
    return _filled(hosting, none_preempted, _by_use(hosting, none_preempted), count)


@kernel
def _pick_by_cost(hosting: Hosting, state: SearchState, count: int, most_steps: int) -> int:
    """Take the server of least preemption cost, and those that its jobs leave free, until there are enough
    (section 3.4; erratum L1). Return the steps used."""
    effects = _no_effects(hosting)
    damage = effects.damage_gpus
    left, steps = count - state.chosen.sum(), 0
    while left > 0:
        steps = _update(hosting, state, left, effects, steps, most_steps)
        if steps > most_steps:
            _pick_the_rest(hosting, state, effects.blocks, left)
            break
        costs = _costs(hosting, effects.blocks)
        best = -1
        for server in range(costs.size):
            if state.chosen[server]:
                continue
            if best < 0:
                best = server
            saved = costs[best] - costs[server]
            if saved > _SAME_COST or (saved >= -_SAME_COST and damage[server] < damage[best]):
                best = server
        left -= _preempt(hosting, state, effects.blocks, best, left)
    return steps


@kernel
def _pick_by_yield(hosting: Hosting, state: SearchState, count: int, most_steps: int) -> int:
    """Take the server that yields the most servers per preempted job, counting those that become free, until
    there are enough. Return the steps used."""
    effects = _no_effects(hosting)
    jobs, freed, damage = effects.jobs, effects.freed, effects.damage_gpus
    left, steps = count - state.chosen.sum(), 0
    while left > 0:
        steps = _update(hosting, state, left, effects, steps, most_steps)
        if steps > most_steps:
            _pick_the_rest(hosting, state, effects.blocks, left)
            break
        best = -1
        for server in range(jobs.size):
            if state.chosen[server]:
                continue
            if best < 0:
                best = server
            gain = min(freed[server], left) * jobs[best] - min(freed[best], left) * jobs[server]
            if gain > 0 or (gain == 0 and damage[server] < damage[best]):
                best = server
        left -= _preempt(hosting, state, effects.blocks, best, left)
    return steps


@kernel
def _pick_the_rest(hosting: Hosting, state: SearchState, blocks: Bools, left: int) -> None:
    """Take `left` servers in the order of their costs, which are not counted again, and before each those
    that the jobs preempted so far leave free."""
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    for server in np.argsort(_costs(hosting, blocks), kind="mergesort"):
        if left == 0:
            break
        if state.chosen[server]:
            continue
        fresh = np.full(starts[server + 1] - starts[server], -1, np.int64)
        for index in range(starts[server], starts[server + 1]):
            place = places[index]
            job = hosting.place_job[place]
            lacks = hosting.place_workers[place] > hosting.spare[job] - state.lost[job]
            if lacks and not state.preempted[job]:
                state.preempted[job] = True
                fresh[index - starts[server]] = job
        left -= _choose_free(hosting, state, np.array([server]), 1)
        for job in fresh:
            if job >= 0:
                others = hosting.place_server[job_starts[job] : job_starts[job + 1]]
                left -= _choose_free(hosting, state, others, left)


@kernel
def _refined(hosting: Hosting, found: SearchState, count: int, most_steps: int) -> SearchState:
    """Return `count` servers that preempt only jobs already found, and spare those that need not be
    preempted.

    Of free servers, those that vacate the most GPUs of preempted jobs are chosen. The servers found stay if
    this search finds fewer: which servers an elastic job can lose depends on those it has lost before.
    """
    needed = found.preempted.copy()
    use = _by_use(hosting, found.preempted)
    steps = 0
    for job in np.flatnonzero(found.preempted):
        steps += hosting.place_job.size + use.size
        if steps > most_steps:
            break
        needed[job] = False
        if _filled(hosting, needed, use, count).chosen.sum() < count:
            needed[job] = True
    vacated = np.zeros(use.size, np.int64)
    for place in range(hosting.place_job.size):
        if needed[hosting.place_job[place]]:
            vacated[hosting.place_server[place]] += hosting.place_gpus[place]
    tight = _filled(hosting, needed, use[np.argsort(-vacated[use], kind="mergesort")], count)
    if tight.chosen.sum() == count:
        return tight
    loose = _filled(hosting, needed, use, count)
    return loose if loose.chosen.sum() == count else found


@kernel
def _is_better(hosting: Hosting, one: SearchState, other: SearchState) -> bool:
    """Return whether `one` preempts fewer jobs, or as many with less damage."""
    difference = one.preempted.sum() - other.preempted.sum()
    return difference < 0 or (difference == 0 and _damage_gpus(hosting, one) < _damage_gpus(hosting, other))


@kernel
def _damage_gpus(hosting: Hosting, state: SearchState) -> int:
    """Return the GPUs vacated on servers that are not chosen."""
    total = hosting.elsewhere_gpus[state.preempted].sum()
    for place in range(hosting.place_job.size):
        if state.preempted[hosting.place_job[place]] and not state.chosen[hosting.place_server[place]]:
            total += hosting.place_gpus[place]
    return int(total)


@kernel
def _filled(hosting: Hosting, preempted: Bools, order: Ints, count: int) -> SearchState:
    """Take servers that are free when these jobs are preempted, in an order, up to `count`."""
    state = SearchState(np.zeros(order.size, np.bool_), preempted.copy(), np.zeros(preempted.size, np.int64))
    _choose_free(hosting, state, order, count)
    return state


@kernel
def _preempt(hosting: Hosting, state: SearchState, blocks: Bools, server: int, left: int) -> int:
    """Take a server and preempt its blockers, then take free servers, up to `left`; return their number."""
    for index in range(hosting.server_starts[server], hosting.server_starts[server + 1]):
        place = hosting.server_places[index]
        if blocks[place]:
            state.preempted[hosting.place_job[place]] = True
    _choose_free(hosting, state, np.array([server]), 1)
    return 1 + _choose_free(hosting, state, np.arange(state.chosen.size), left - 1)


@kernel
def _choose_free(hosting: Hosting, state: SearchState, order: Ints, count: int) -> int:
    """Take servers that no job blocks, in an order, up to `count`; return the number chosen."""
    starts, places, jobs, workers, spare = (
        hosting.server_starts,
        hosting.server_places,
        hosting.place_job,
        hosting.place_workers,
        hosting.spare,
    )
    chosen, preempted, lost = state
    number = 0
    for server in order:
        if number == count:
            break
        if chosen[server]:
            continue
        is_free = True
        for index in range(starts[server], starts[server + 1]):
            job = jobs[places[index]]
            if not preempted[job] and workers[places[index]] > spare[job] - lost[job]:
                is_free = False
                break
        if is_free:
            chosen[server] = True
            number += 1
            for index in range(starts[server], starts[server + 1]):
                lost[jobs[places[index]]] += workers[places[index]]
    return number


@kernel
def _costs(hosting: Hosting, blocks: Bools) -> Floats:
    """Return the preemption cost of each server, (servers,) (erratum L1)."""
    costs = np.zeros(hosting.server_starts.size - 1)
    for place in range(blocks.size):
        if blocks[place]:
            costs[hosting.place_server[place]] += 1 / hosting.hosts[hosting.place_job[place]]
    return costs


@kernel
def _by_use(hosting: Hosting, preempted: Bools) -> Ints:
    """Sort the servers by GPUs of jobs that are not preempted, then by id, (servers,)."""
    gpus = np.zeros(hosting.server_starts.size - 1, np.int64)
    for place in range(hosting.place_job.size):
        if not preempted[hosting.place_job[place]]:
            gpus[hosting.place_server[place]] += hosting.place_gpus[place]
    return np.argsort(gpus, kind="mergesort")


@kernel
def _no_effects(hosting: Hosting) -> Effects:
    """Return effects of which none is counted yet."""
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
    hosting: Hosting, state: SearchState, left: int, effects: Effects, steps: int, most_steps: int
) -> int:
    """Count the effects that have changed, while `left` servers are still to be chosen.

    Returns:
        The steps so far; more than `most_steps` if they have run out and not all effects are counted.
    """
    steps += hosting.place_job.size + hosting.server_starts.size
    blockers, forgotten = _update_blocks(hosting, state, effects)
    steps += forgotten
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    job_of, server_of, gpus_of = hosting.place_job, hosting.place_server, hosting.place_gpus
    chosen, blocks = state.chosen, effects.blocks
    touched = np.zeros(chosen.size, np.int64)
    gone = np.zeros(chosen.size, np.int64)
    vacated = np.zeros(chosen.size, np.int64)
    for server in range(chosen.size):
        # If more servers become free than are requested, the excess is damage. It changes with each pick.
        if chosen[server] or (effects.is_known[server] and effects.freed[server] <= left):
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
                if chosen[other]:
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
def _update_blocks(hosting: Hosting, state: SearchState, effects: Effects) -> tuple[Ints, int]:
    """Find the jobs that block servers, and discard the effects that change with them.

    Returns:
        The number of jobs that block each server, (servers,), and the steps used.
    """
    starts, places, job_starts = hosting.server_starts, hosting.server_places, hosting.job_starts
    job_of, server_of, workers = hosting.place_job, hosting.place_server, hosting.place_workers
    blockers = np.zeros(state.chosen.size, np.int64)
    has_changed = np.zeros(state.chosen.size, np.bool_)
    for place in range(job_of.size):
        job = job_of[place]
        blocks = not state.preempted[job] and workers[place] > hosting.spare[job] - state.lost[job]
        blockers[server_of[place]] += blocks
        has_changed[server_of[place]] |= blocks != effects.blocks[place]
        effects.blocks[place] = blocks
    is_forgotten = np.zeros(hosting.spare.size, np.bool_)
    steps = 0
    for server in range(has_changed.size):
        if has_changed[server]:
            # The servers that a loss frees depend on the other jobs on the servers of its jobs.
            for index in range(starts[server], starts[server + 1]):
                job = job_of[places[index]]
                if is_forgotten[job]:
                    continue
                is_forgotten[job] = True
                steps += job_starts[job + 1] - job_starts[job]
                for place in range(job_starts[job], job_starts[job + 1]):
                    effects.is_known[server_of[place]] = False
    return blockers, steps
