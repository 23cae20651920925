"""Tiresias (Gu et al., NSDI '19): the job that has had the least of GPUs and time first, in coarse steps."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from solvers.merging.scheme import Contender
from solvers.merging.sizes import serve_in_order


@dataclass(frozen=True)
class Tiresias:
    """Discretised two-dimensional least attained service (2D-LAS; section 3.2): nothing need be known of how
    long a job takes.

    A job is the less urgent, the more GPU-seconds it has had. Queues by thresholds keep jobs that have had
    nearly the same from taking turns; in a queue, the order is that of arrival. (Tiresias takes the order of
    first starts, which is that of arrival but for jobs that were passed over.) A job that has waited
    `promote_knob` times as long as it has run goes to the first queue.

    One thing differs. Tiresias counts a promoted job's times from zero on. A round is a function of its
    arguments here, so they go on: a promoted job stays in the first queue until it has run its share, one
    second for `promote_knob` that it waited.
    """

    thresholds_gpu_s: tuple[float, ...] = (3600.0,)
    """Where one queue ends and the next begins, ascending. Two queues are enough (section 5.4); one GPU-hour
    is the threshold of the simulator whose published values we compare with."""
    promote_knob: float = math.inf
    """PROMOTEKNOB; with an infinite one, as in that simulator, nobody is promoted."""

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        return serve_in_order(sorted(jobs, key=lambda job: (self.queue_of(job), job.arrival)), gpus)

    def queue_of(self, job: Contender) -> int:
        """0 is the first to be served."""
        if job.running_s > 0 and job.waited_s >= self.promote_knob * job.running_s:
            return 0
        return bisect_right(self.thresholds_gpu_s, job.attained_gpu_s)
