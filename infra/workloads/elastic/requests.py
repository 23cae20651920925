"""Requests of users to a cluster, seeded samples of them, and requests cut from the trace of a real cluster
and scaled to another one."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra.workloads.arrivals import stretched
from infra.workloads.timed import WorkloadError
from infra.workloads.trace import TraceJob

DAY_S = 86_400.0
HOUR_S = 3_600.0

BIG_SHARE = 0.15
"""Share of the requests, those with most GPU time, that are sampled apart: they have nearly all of it."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job, as it was submitted and ran."""

    offset_s: float
    """Time of submission since the start of the workload: midnight, local time."""
    user: str
    gpus: int
    """The requested demand."""
    duration_s: float
    """The running time at the requested demand, on the reference GPU."""
    scalable: bool
    """Whether the job is one of the few large ones whose models scale well (thesis, section 3.2.2)."""

    @property
    def gpu_s(self) -> float:
        """GPU time that the job takes."""
        return self.gpus * self.duration_s


def window(requests: Sequence[JobRequest], first_day: float, days: float) -> list[JobRequest]:
    """Return the requests of `days` from `first_day` on.

    Jobs from before that would still run, had they never waited, are submitted first, with the rest of their
    duration: a cluster is not empty at the start of a day.
    """
    start_s, end_s = first_day * DAY_S, (first_day + days) * DAY_S
    left = [
        replace(request, offset_s=0.0, duration_s=request.offset_s + request.duration_s - start_s)
        for request in requests
        if request.offset_s < start_s < request.offset_s + request.duration_s
    ]
    return left + [
        replace(request, offset_s=request.offset_s - start_s)
        for request in requests
        if start_s <= request.offset_s < end_s
    ]


def chosen_by_share(
    requests: Sequence[JobRequest],
    among: Sequence[int],
    job_share: float,
    load_share: float,
    rng: random.Random,
) -> list[int]:
    """Draw some of the requests at the indices `among`: `job_share` of all requests by count, and
    `load_share` of all GPU time.

    The big ones and the others are sampled apart, each evenly over its sizes, at the two rates that give both
    shares. Where no such rates exist, the share of GPU time has priority.
    """
    target_jobs = job_share * len(requests)
    target_gpu_s = load_share * math.fsum(request.gpu_s for request in requests)
    ranked = sorted(among, key=lambda index: (-requests[index].gpu_s, index))
    border = math.ceil(BIG_SHARE * len(ranked))
    big, small = ranked[:border], ranked[border:]
    big_gpu_s, small_gpu_s = (math.fsum(requests[index].gpu_s for index in part) for part in (big, small))
    # Two equations: rates times counts give the target jobs, rates times GPU times the target GPU time.
    determinant = len(big) * small_gpu_s - len(small) * big_gpu_s
    if small_gpu_s == 0 or determinant == 0:
        return sorted(_evenly(ranked, min(target_gpu_s / ((big_gpu_s + small_gpu_s) or 1.0), 1.0), rng))
    big_rate = (target_jobs * small_gpu_s - len(small) * target_gpu_s) / determinant
    least, most = (target_gpu_s - small_gpu_s) / big_gpu_s, target_gpu_s / big_gpu_s
    big_rate = min(max(big_rate, least, 0.0), most, 1.0)
    small_rate = min((target_gpu_s - big_rate * big_gpu_s) / small_gpu_s, 1.0)
    return sorted([*_evenly(big, big_rate, rng), *_evenly(small, small_rate, rng)])


def _evenly(ranked: Sequence[int], rate: float, rng: random.Random) -> list[int]:
    """Return a systematic sample at `rate`, spread over all ranks, from a random start."""
    start = rng.random()
    return [
        index
        for place, index in enumerate(ranked)
        if math.floor((place + 1) * rate + start) > math.floor(place * rate + start)
    ]


LOAD = 0.78
"""Requested GPU time over that of the cluster, as in the generated workload. With it, the baseline uses 72 %
of the cluster's GPU time while jobs are submitted."""

SCALABLE_SHARE = 0.05
SCALABLE_LOAD_SHARE = 0.36
"""Shares of the jobs, and of the GPU time, that large jobs of scalable models have (section 3.2.2)."""


def requests_from_trace(
    jobs: Sequence[TraceJob], gpus: int, days: float, seed: int, load: float = LOAD
) -> list[JobRequest]:
    """Return consecutive jobs from a seeded place in the trace that give a cluster `load` for `days`.

    The order, the proportions of the gaps, the users, the GPUs and the running times are the trace's. One
    factor scales the time between arrivals to the days: bursts are kept, but hours of the trace are not hours
    of the workload's day. No job requests more than half of the cluster (section 3.7.5) or runs for longer
    than the days; jobs that took no time are left out. A worker needs a whole GPU, so demands are rounded up
    to whole GPUs. Traces do not record which jobs are scalable. The seed draws them among the jobs with
    several GPUs: a twentieth of all jobs, with 36 % of the GPU time, if the trace allows it.

    Raises:
        WorkloadError: the whole trace has too little work, or there are no GPUs, days or load.
    """
    if gpus < 2 or not 0 < days < math.inf or not 0 < load < math.inf:
        raise WorkloadError(
            f"a workload for {gpus} GPUs, {days} days and a load of {load}: at least 2 GPUs are needed, and "
            "more than 0 of the others"
        )
    span_s = days * DAY_S
    run = _run(_fitted(jobs, gpus, span_s), load * gpus * span_s, seed)
    return _requests(run, [arrival.offset_s for arrival in stretched(run, span_s)], seed)


def requests_as_recorded(jobs: Sequence[TraceJob], gpus: int, seed: int) -> list[JobRequest]:
    """Return all jobs of a file at their own times, for files that were made for a cluster of this size.

    Demands are cut and scalable jobs are drawn as by `requests_from_trace`; running times are kept.

    Raises:
        WorkloadError: no job took any time, or there are no GPUs.
    """
    fitted = _fitted(jobs, gpus, math.inf)
    if gpus < 2 or not fitted:
        raise WorkloadError(
            f"{len(fitted)} jobs that took any time for {gpus} GPUs: at least 1 and 2 are needed"
        )
    return _requests(fitted, [job.submit_time_s for job in fitted], seed)


def rounding_note(jobs: Sequence[TraceJob]) -> str | None:
    """Return a line on the jobs whose GPUs are rounded up, and the GPU time that it adds; None without any.

    Jobs that took no time are not counted: they are left out.
    """
    rounded = [job for job in jobs if job.duration_s > 0 and job.gpus != int(job.gpus)]
    if not rounded:
        return None
    total_gpu_s = math.fsum(job.gpu_s for job in jobs)
    added_gpu_s = math.fsum((math.ceil(job.gpus) - job.gpus) * job.duration_s for job in rounded)
    return (
        f"{len(rounded)} of {len(jobs)} jobs ask for a part of a GPU: each is rounded up to whole GPUs at "
        f"the same running time, which adds {added_gpu_s / total_gpu_s:.1%} to the GPU time of the trace"
    )


def _fitted(jobs: Sequence[TraceJob], gpus: int, longest_s: float) -> list[TraceJob]:
    return [
        replace(job, gpus=min(math.ceil(job.gpus), gpus // 2), duration_s=min(job.duration_s, longest_s))
        for job in jobs
        if job.duration_s > 0
    ]


def _requests(run: Sequence[TraceJob], offsets: Sequence[float], seed: int) -> list[JobRequest]:
    requests = [
        JobRequest(offset_s, job.user, int(job.gpus), job.duration_s, scalable=False)
        for offset_s, job in zip(offsets, run, strict=True)
    ]
    rng = random.Random(f"{seed}/elastic/scalable")
    candidates = [index for index, request in enumerate(requests) if request.gpus > 1]
    for index in chosen_by_share(requests, candidates, SCALABLE_SHARE, SCALABLE_LOAD_SHARE, rng):
        requests[index] = replace(requests[index], scalable=True)
    return requests


def _run(jobs: Sequence[TraceJob], target_gpu_s: float, seed: int) -> Sequence[TraceJob]:
    """Return consecutive jobs with this GPU time at least, and less than it without the last."""
    total_gpu_s = math.fsum(job.gpu_s for job in jobs)
    if total_gpu_s < target_gpu_s:
        raise WorkloadError(
            f"the trace has {total_gpu_s / HOUR_S:.0f} GPU hours that fit the cluster, "
            f"{target_gpu_s / HOUR_S:.0f} are needed: request fewer days or GPUs, or less load"
        )
    # The last place from which there is enough work: any place before it has more.
    rest_gpu_s, last = 0.0, len(jobs)
    while rest_gpu_s < target_gpu_s and last > 0:
        last -= 1
        rest_gpu_s += jobs[last].gpu_s
    first = random.Random(f"{seed}/elastic/trace").randrange(last + 1)
    run_gpu_s, end = 0.0, first
    while run_gpu_s < target_gpu_s and end < len(jobs):
        run_gpu_s += jobs[end].gpu_s
        end += 1
    return jobs[first:end]
