"""Preemptive shortest remaining time first."""

from collections.abc import Sequence

from solvers.merging.scheme import Contender
from solvers.merging.sizes import fixed_size, serve_in_order


class ShortestRemainingTimeFirst:
    """The job with the least left to do first, each at the size that was asked for.

    A job that would be over later gives its GPUs to one that would be over sooner, whatever the switch costs.
    """

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        order = sorted(jobs, key=lambda job: (job.remaining_s[fixed_size(job, gpus)], job.arrival))
        return serve_in_order(order, gpus)
