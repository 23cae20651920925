"""Choice of the servers on loan that are given back (thesis, section 3.4)."""

import random
from collections.abc import Callable

from solvers.elastic.least_preemptions import fewest_preempted
from solvers.elastic.lent import Lent, Reclaim, reclaim_of

Choice = Callable[[Lent, int], Reclaim]
"""Function that chooses a number of servers."""


def least_preemption_cost(lent: Lent, count: int) -> Reclaim:
    """Return the choice of the fewest preempted jobs, then the least collateral damage, found in a bounded
    number of steps.

    Servers whose loss preempts no job are taken first. Then two searches continue, and the better result
    counts. That of the thesis takes the server of least preemption cost (erratum L1). The other takes the
    server that yields the most servers per preempted job, counting those that become free. Both count again
    after each pick; ties by the GPUs that are vacated and not requested, then by server id. In the end, jobs
    that need not be preempted are spared, and of the free servers, those of preempted jobs are given back.

    Raises:
        ValueError: there are fewer servers, or a job has fewer workers than its base demand.
    """
    _check(lent, count)
    return reclaim_of(lent, fewest_preempted(lent, count))


def smallest_count(lent: Lent, count: int) -> Reclaim:
    """Return the servers with the fewest jobs, counted once (section 3.7.1); ties by id."""
    _check(lent, count)
    hosted = dict.fromkeys((server.server_id for server in lent.servers), 0)
    for job in lent.jobs:
        for server_id in job.all_workers():
            if server_id in hosted:
                hosted[server_id] += 1
    return reclaim_of(lent, sorted(hosted, key=lambda server_id: (hosted[server_id], server_id))[:count])


def random_choice(seed: int) -> Choice:
    """Return a random choice (section 3.7.1), equal for equal seeds, servers, jobs and counts."""

    def choose(lent: Lent, count: int) -> Reclaim:
        _check(lent, count)
        servers = sorted(server.server_id for server in lent.servers)
        return reclaim_of(lent, random.Random(seed).sample(servers, count))

    return choose


def _check(lent: Lent, count: int) -> None:
    if not 0 <= count <= len(lent.servers):
        raise ValueError(f"{count} servers are requested, and {len(lent.servers)} are on loan")
