"""Optimus (Peng et al., EuroSys '18): GPUs, step by step, to the job whose remaining time falls the most."""

import heapq
from collections.abc import Sequence

from solvers.merging.scheme import Contender
from solvers.merging.sizes import by_arrival

_Step = tuple[float, int, Contender, tuple[int, ...]]
"""Step to a larger size: the negative saving per GPU, the arrival, the job, and its larger sizes."""


class Optimus:
    """Allocation of the smallest size to every job, then of the next size to the job that gains most (section
    4.1).

    Every round allocates all GPUs again. With fewer GPUs than jobs, the earliest are served, since Optimus
    does not define which wait. The gain of a step to the next size is the saved remaining time per GPU. A job
    whose next step does not fit keeps its size.
    """

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        granted: dict[str, int] = {}
        left = gpus
        steps: list[_Step] = []
        for job in by_arrival(jobs):
            smallest, *larger = job.remaining_s
            if smallest <= left:
                granted[job.job_id] = smallest
                left -= smallest
                if larger:
                    steps.append(_step(job, smallest, tuple(larger)))
        heapq.heapify(steps)
        while steps:
            _, _, job, (size, *larger) = heapq.heappop(steps)
            more = size - granted[job.job_id]
            if more <= left:
                granted[job.job_id] = size
                left -= more
                if larger:
                    heapq.heappush(steps, _step(job, size, tuple(larger)))
        return granted


def _step(job: Contender, size: int, larger: tuple[int, ...]) -> _Step:
    """Return the step to the next size. Steps sort the best first; ties by arrival."""
    saved_s = job.remaining_s[size] - job.remaining_s[larger[0]]
    return -saved_s / (larger[0] - size), job.arrival, job, larger
