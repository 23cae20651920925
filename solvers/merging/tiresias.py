"""Tiresias (Gu et al., NSDI '19): the job with the least attained GPU time first, in coarse steps."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from solvers.merging.scheme import Contender
from solvers.merging.sizes import serve_in_order


@dataclass(frozen=True)
class Tiresias:
    """Discretised two-dimensional least attained service (2D-LAS; section 3.2). It needs no durations of
    jobs.

    A job is less urgent, the more GPU-seconds it has attained. Queues by thresholds keep jobs with nearly
    equal service from alternating; the order in a queue is that of arrival. (Tiresias uses the order of first
    starts, which is that of arrival except for skipped jobs.) A job that has waited `promote_knob` times as
    long as it has run is promoted to the first queue.

    One point differs. Tiresias resets the times of a promoted job. Here a round is a function of its
    arguments, so they continue: a promoted job stays in the first queue until it has run its share, one
    second per `promote_knob` seconds of waiting.
    """

    thresholds_gpu_s: tuple[float, ...] = (3600.0,)
    """Thresholds between queues, ascending. Two queues are enough (section 5.4); one GPU-hour is the
    threshold of the simulator with the published values used for comparison."""
    promote_knob: float = math.inf
    """PROMOTEKNOB; with an infinite one, as in that simulator, no job is promoted."""

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        return serve_in_order(sorted(jobs, key=lambda job: (self.queue_of(job), job.arrival)), gpus)

    def queue_of(self, job: Contender) -> int:
        """Return the queue of a job; 0 is served first."""
        if job.running_s > 0 and job.waited_s >= self.promote_knob * job.running_s:
            return 0
        return bisect_right(self.thresholds_gpu_s, job.attained_gpu_s)
