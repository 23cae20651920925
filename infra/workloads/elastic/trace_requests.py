"""Requests cut from the trace of a real cluster, scaled to another one."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from infra.workloads.arrivals import stretched
from infra.workloads.elastic.requests import DAY_S, HOUR_S, JobRequest, chosen_by_share
from infra.workloads.timed import WorkloadError
from infra.workloads.trace import TraceJob

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
    to whole GPUs. Traces do not record which jobs are scalable: the seed draws them among the jobs with
    several GPUs, a twentieth of all jobs with 36 % of the GPU time, as far as the trace allows.

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
    draws = random.Random(f"{seed}/elastic/scalable")
    candidates = [index for index, request in enumerate(requests) if request.gpus > 1]
    for index in chosen_by_share(requests, candidates, SCALABLE_SHARE, SCALABLE_LOAD_SHARE, draws):
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
