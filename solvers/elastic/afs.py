"""AFS (NSDI '21), as the thesis adapts it: base demands, then single workers by the largest gain."""

import heapq
from collections.abc import Mapping, Sequence
from typing import ClassVar

from solvers.elastic.allocation import Allocation
from solvers.elastic.demand import Demand, Grant, Pool


class Afs:
    """Allocation of base demands, then of one worker at a time to the job with the largest gain of throughput
    per GPU (thesis, section 3.7.1).

    Every round allocates all flexible workers again. Base demands go to the shortest job first, as AFS
    prefers where jobs outnumber GPUs, and a job that does not fit is skipped; the nearly equal queuing times
    of AFS and Lyra (Table 3.5, rows 11 and 13) agree with that. Throughput is in units of the job's own with
    one worker, the only unit that compares between models. A worker without a gain is not allocated.
    """

    keeps_order: ClassVar[bool] = False
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
        for job in running:
            allocation.resize(job, job.min_workers)
        started = []
        for job in sorted(waiting, key=lambda job: (job.remaining_s(job.min_workers), job.arrival)):
            pool = allocation.roomy_pool(job)
            if pool is not None:
                allocation.start(job, pool)
                started.append(job)
        _share_out(allocation, [*running, *started])
        return allocation.grants()


def _share_out(allocation: Allocation, jobs: Sequence[Demand]) -> None:
    """Allocate the idle GPUs, worker by worker; ties by arrival."""
    steps = [
        (-_gain_per_gpu(allocation, job), job.arrival, index)
        for index, job in enumerate(jobs)
        if job.min_workers < job.most_workers
    ]
    heapq.heapify(steps)
    while steps and steps[0][0] < 0:
        job = jobs[steps[0][2]]
        if allocation.grow(job, 1) and allocation.workers(job) < job.most_workers:
            heapq.heapreplace(steps, (-_gain_per_gpu(allocation, job), *steps[0][1:]))
        else:
            heapq.heappop(steps)


def _gain_per_gpu(allocation: Allocation, job: Demand) -> float:
    """Return the gain of one more worker, per GPU."""
    workers = allocation.workers(job)
    gain = allocation.speed(job, workers + 1) - allocation.speed(job, workers)
    return gain / job.gpus_per_worker
