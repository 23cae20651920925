"""Optimus (Peng et al., EuroSys '18): GPUs, step by step, to the job whose remaining time falls the most."""

import heapq
from collections.abc import Sequence

from solvers.merging.scheme import Contender
from solvers.merging.sizes import by_arrival

_Step = tuple[float, int, Contender, tuple[int, ...]]
"""What it saves per GPU, negative; the arrival; the job; the sizes that it may still go to."""


class Optimus:
    """Every job its smallest size, and then the next to whom it helps the most (section 4.1).

    Every round starts over. Where there are fewer GPUs than jobs, the earliest are served, since Optimus does
    not say who waits. The gain of a step to the next size is the remaining time that it takes away, per GPU,
    and a job whose next step does not fit stays as it is.
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
    """To the next size. The best comes first; ties by arrival."""
    saved_s = job.remaining_s[size] - job.remaining_s[larger[0]]
    return -saved_s / (larger[0] - size), job.arrival, job, larger
