"""First in, first out: the baseline, and opportunistic scheduling on idle servers (thesis, section 3.7.1).

Neither scales jobs. An elastic job runs with its base demand, which in the thesis is the demand that the job
requested; scaling only adds to it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from solvers.elastic.allocation import Allocation
from solvers.elastic.demand import Demand, Grant, Pool


class FirstInFirstOut:
    """Baseline of the thesis: strictly in the order of arrival. A job that does not fit blocks all later
    ones.

    A job starts in the first of its pools that has room. The baseline has no loans: its pool of loaned
    servers is empty.
    """

    keeps_order: ClassVar[bool] = True
    gives_turns: ClassVar[bool] = False

    def allocate(
        self,
        waiting: Sequence[Demand],
        running: Sequence[Demand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[Grant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        for job in waiting:
            pool = allocation.roomy_pool(job)
            if pool is None:
                break
            allocation.start(job, pool)
        return allocation.grants()


class Opportunistic:
    """Two queues, each first in, first out: jobs that may run on loaned servers get only those, and all
    others get training servers.

    The thesis queues fungible jobs at the inference cluster, where they use idle servers at a lower priority
    than inference: that is a pool of all idle servers, which are reclaimed at any time.
    """

    keeps_order: ClassVar[bool] = True
    gives_turns: ClassVar[bool] = False

    def allocate(
        self,
        waiting: Sequence[Demand],
        running: Sequence[Demand],
        free_gpus: Mapping[Pool, float],
        trial: int = 0,  # noqa: ARG002
    ) -> list[Grant]:
        """See `Scheme`."""
        allocation = Allocation(running, free_gpus)
        blocked: set[Pool] = set()
        for job in waiting:
            pool: Pool = "loaned" if "loaned" in job.pools else "training"
            if pool in blocked:
                continue
            if pool in job.open_pools and allocation.idle_gpus(pool) >= job.min_workers * job.gpus_per_worker:
                allocation.start(job, pool)
            else:
                blocked.add(pool)
        return allocation.grants()
