"""Which servers on loan are given back (thesis, section 3.4)."""

import random
from collections.abc import Callable

from solvers.elastic.least_preemptions import fewest_preempted
from solvers.elastic.lent import Lent, Reclaim, reclaim_of

Choice = Callable[[Lent, int], Reclaim]
"""Chooses so many servers."""


def least_preemption_cost(lent: Lent, count: int) -> Reclaim:
    """The choice of the fewest preempted jobs, then the least collateral damage, that is found in a bounded
    number of steps.

    Servers whose loss preempts nobody are taken first. Then there are two ways to go on, of which the better
    result counts. The thesis's takes the server of least preemption cost (erratum L1). The other takes the
    server that brings the most servers for each job preempted, counting those that are left free. Either
    counts anew after each pick; ties go by the GPUs that are vacated and not asked for, then by server id. In
    the end jobs that need not be preempted after all are spared, and of the servers that may go by then,
    those of preempted jobs do.

    Raises:
        ValueError: there are not so many servers, or a job has fewer workers than its base demand.
    """
    _check(lent, count)
    return reclaim_of(lent, fewest_preempted(lent, count))


def smallest_count(lent: Lent, count: int) -> Reclaim:
    """The servers with the smallest number of jobs, counted once (section 3.7.1); ties by id."""
    _check(lent, count)
    hosted = dict.fromkeys((server.server_id for server in lent.servers), 0)
    for job in lent.jobs:
        for server_id in job.all_workers():
            if server_id in hosted:
                hosted[server_id] += 1
    return reclaim_of(lent, sorted(hosted, key=lambda server_id: (hosted[server_id], server_id))[:count])


def random_choice(seed: int) -> Choice:
    """Any servers (section 3.7.1): the same ones for the same seed, picture and count."""

    def choose(lent: Lent, count: int) -> Reclaim:
        _check(lent, count)
        servers = sorted(server.server_id for server in lent.servers)
        return reclaim_of(lent, random.Random(seed).sample(servers, count))

    return choose


def preemption_costs(lent: Lent) -> dict[str, float]:
    """What each server costs before any is picked: the sum, over the jobs that its loss would preempt, of
    1 / (number of servers that host the job) (Table 3.1, last column; erratum L1)."""
    costs = dict.fromkeys((server.server_id for server in lent.servers), 0.0)
    for job in lent.jobs:
        spare = sum(job.workers.values()) - job.min_workers
        for server_id, workers in job.workers.items():
            if workers > spare and server_id in costs:
                costs[server_id] += 1 / len(job.all_workers())
    return costs


def _check(lent: Lent, count: int) -> None:
    if not 0 <= count <= len(lent.servers):
        raise ValueError(f"{count} servers are asked for, of {len(lent.servers)} that are on loan")
