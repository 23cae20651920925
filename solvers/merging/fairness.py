"""Finish-time fairness, as Shockwave (Zheng et al., NSDI '23) computes it: effects of sharing on jobs."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from solvers.merging.scheme_interface import size_within


class Finished(NamedTuple):
    """Job that has ended."""

    job_id: str
    submitted_s: float
    finished_s: float
    asked_gpus: int
    total_s: Mapping[int, float]
    """Duration of the whole job, alone and undisturbed, by number of GPUs that it may have, ascending."""


def finish_time_fairness(jobs: Sequence[Finished], gpus: int) -> dict[str, float]:
    """Return rho by job: its completion time over that with a fair share of the GPUs. Above 1, sharing hurt
    it.

    A fair share is 1/N of the GPUs, where N is the mean number of jobs that contended in the time of the job,
    itself included. A job uses at most the GPUs that it requested; with a share below its smallest size, it
    has this size for a part of the time. Jobs of Shockwave cannot change their size, so it uses the duration
    at the requested size, multiplied by N over the number of GPUs if there are more jobs than GPUs.
    """
    counts = contending(jobs)
    return {job.job_id: _completion_s(job) / _fair_s(job, gpus / counts[job.job_id]) for job in jobs}


def contending(jobs: Sequence[Finished]) -> dict[str, float]:
    """Return the mean number of jobs between the submission and the end of each job, by job."""
    changes = sorted([(job.submitted_s, 1) for job in jobs] + [(job.finished_s, -1) for job in jobs])
    times_s = [time_s for time_s, _ in changes]
    present = list(accumulate(change for _, change in changes))
    spans_s = [later - earlier for earlier, later in pairwise(times_s)]
    job_s = list(accumulate((n * span_s for n, span_s in zip(present, spans_s, strict=False)), initial=0.0))

    def job_s_until(time_s: float) -> float:
        return job_s[bisect_right(times_s, time_s) - 1]

    found = {}
    for job in jobs:
        span_s = _completion_s(job)
        shared_s = job_s_until(job.finished_s) - job_s_until(job.submitted_s)
        found[job.job_id] = max(shared_s / span_s, 1.0) if span_s > 0 else 1.0
    return found


def _completion_s(job: Finished) -> float:
    return job.finished_s - job.submitted_s


def _fair_s(job: Finished, share_gpus: float) -> float:
    size = size_within(job.total_s, min(share_gpus, job.asked_gpus))
    return job.total_s[size] * max(size / share_gpus, 1.0)
