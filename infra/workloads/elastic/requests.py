"""Requests of users to a cluster, as a trace records them, and seeded samples of them."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    draws: random.Random,
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
        return sorted(_evenly(ranked, min(target_gpu_s / ((big_gpu_s + small_gpu_s) or 1.0), 1.0), draws))
    big_rate = (target_jobs * small_gpu_s - len(small) * target_gpu_s) / determinant
    least, most = (target_gpu_s - small_gpu_s) / big_gpu_s, target_gpu_s / big_gpu_s
    big_rate = min(max(big_rate, least, 0.0), most, 1.0)
    small_rate = min((target_gpu_s - big_rate * big_gpu_s) / small_gpu_s, 1.0)
    return sorted([*_evenly(big, big_rate, draws), *_evenly(small, small_rate, draws)])


def _evenly(ranked: Sequence[int], rate: float, draws: random.Random) -> list[int]:
    """Return a systematic sample at `rate`, spread over all ranks, from a random start."""
    start = draws.random()
    return [
        index
        for place, index in enumerate(ranked)
        if math.floor((place + 1) * rate + start) > math.floor(place * rate + start)
    ]
