"""Preemptive shortest remaining time first."""

from collections.abc import Sequence

from solvers.merging.scheme import Contender
from solvers.merging.sizes import fixed_size, serve_in_order


class ShortestRemainingTimeFirst:
    """Shortest remaining time first, each job at its requested size.

    A job that would end sooner preempts one that would end later, whatever the switch costs.
    """

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        order = sorted(jobs, key=lambda job: (job.remaining_s[fixed_size(job, gpus)], job.arrival))
        return serve_in_order(order, gpus)
