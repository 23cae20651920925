"""Requests generated like those of the thesis' trace: 50,390 jobs in 15 days on 3,544 GPUs.

The trace is not public. The targets are figures of the thesis: the jobs' running times, demands and rhythm,
and the results of the baseline (Table 3.5, row 1). The results of other schemes were not used;
docs/results/workloads.md has the figures that are reached.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, fmean

from infra.workloads.arrivals import BLOCK_MEAN_GAPS, cox_times, tenants
from infra.workloads.elastic.requests import DAY_S, HOUR_S, JobRequest
from infra.workloads.timed import WorkloadError

JOBS = 50_390
DAYS = 15
TRAINING_GPUS = 3_544
"""Section 3.7.1. Unless the number of jobs is given, it is in proportion to days and GPUs."""

LOG_RATE_VARIANCE = 1.6
"""Variance of the bursts' log rate; with the rhythm, the coefficient of variation of the gaps is 2.8 to 3.3
(Philly 2.5, ITP 3.8) and the dispersion of hourly counts 90 to 135 (Philly 156, ITP 61)."""

HOUR_WEIGHTS = (
    *(0.62, 0.50, 0.42, 0.38, 0.36, 0.38, 0.45, 0.58, 0.80, 1.10, 1.35, 1.42),
    *(1.25, 1.20, 1.40, 1.50, 1.52, 1.48, 1.38, 1.25, 1.22, 1.25, 1.10, 0.85),
)
"""Relative rate of submissions by hour of day: a working day that goes on into the evening."""

WEEKEND_WEIGHT = 0.4
WEEKEND_DAYS = (2, 3)
"""Days of the week on which the cluster is less busy (section 3.7.2). Day 0 is a Thursday, like 1 October
2020, the first day of Figure 3.1."""


@dataclass(frozen=True)
class JobClass:
    """Jobs of one kind: a lognormal of running times, and shares by GPUs."""

    median_s: float
    log_deviation: float
    least_s: float
    gpu_weights: Mapping[int, float]
    mean_s: float | None = None
    """Mean to which the drawn times are scaled; None leaves them."""


LONGEST_S = 10 * DAY_S
"""Longest running time ("minutes to days")."""

SCALABLE_SHARE = 0.05
LONG_SHARE = 0.13
"""Shares of the jobs; the rest is short."""

SCALABLE = JobClass(36_000.0, 0.84, 600.0, {4: 0.30, 8: 0.45, 16: 0.18, 32: 0.07}, mean_s=14.2 * HOUR_S)
"""The large jobs of model families that scale: a twentieth of the jobs with 36 % of the GPU time, and a mean
running time of 14.2 h (section 3.2.2)."""

LONG = JobClass(
    53_000.0,
    0.89,
    60.0,
    {1: 0.584, 2: 0.09, 4: 0.11, 8: 0.147, 16: 0.04, 32: 0.02, 64: 0.007, 128: 0.002},
)
SHORT = JobClass(270.0, 1.25, 30.0, {1: 0.80, 2: 0.07, 4: 0.06, 8: 0.06, 16: 0.01})
"""Short jobs, which with the long ones reach the median, the mean and the 95th percentile of the baseline's
JCT. One lognormal cannot: the mean is twenty times the median."""


CLASSES = ((SCALABLE_SHARE, SCALABLE), (LONG_SHARE, LONG), (1 - SCALABLE_SHARE - LONG_SHARE, SHORT))

MOST_GPUS = 128
"""Largest demand on the thesis' cluster. On a smaller cluster it is smaller in proportion, but at least a
server's 8 GPUs, and there are more jobs. Otherwise, a few jobs that block the queue would determine all
results."""
LEAST_MOST_GPUS = 8


def generate_requests(
    seed: int, gpus: int = TRAINING_GPUS, days: float = DAYS, jobs: int | None = None
) -> list[JobRequest]:
    """Generate requests to a training cluster, in the order of their submission.

    The running times of each class and number of GPUs are spread evenly over their distribution: seeds differ
    in the times of submission rather than in the work. On a smaller cluster, bursts have fewer jobs and last
    as long.

    Args:
        seed: Seed of all draws.
        gpus: GPUs of the training cluster.
        days: Time in which jobs are submitted.
        jobs: Number of jobs; None gives the thesis' load, which is 50,390 jobs on its cluster in its time.

    Raises:
        WorkloadError: there are no GPUs, no time or no jobs.
    """
    if gpus < 1 or not 0 < days < math.inf:
        raise WorkloadError(
            f"a workload for {gpus} GPUs and {days} days: at least 1 and more than 0 are needed"
        )
    most_gpus = min(max(MOST_GPUS * gpus // TRAINING_GPUS, LEAST_MOST_GPUS), MOST_GPUS, gpus)
    smaller = _mean_gpu_s(most_gpus) / _mean_gpu_s(MOST_GPUS)
    count = round(JOBS * (gpus / TRAINING_GPUS) * (days / DAYS) / smaller) if jobs is None else jobs
    if count < 1:
        raise WorkloadError(f"{count} jobs are requested, at least 1 is needed")
    block_mean_gaps = max(BLOCK_MEAN_GAPS * min(gpus / TRAINING_GPUS, 1.0), 1.0)
    offsets = _offsets(count, days, block_mean_gaps, random.Random(f"{seed}/elastic/arrivals"))
    users = tenants(count, random.Random(f"{seed}/elastic/tenants"))
    demands = _demands(count, random.Random(f"{seed}/elastic/sizes"))
    return [
        JobRequest(offset_s, user, min(demand_gpus, most_gpus), duration_s, scalable)
        for offset_s, user, (demand_gpus, duration_s, scalable) in zip(offsets, users, demands, strict=True)
    ]


def _mean_gpu_s(most_gpus: int) -> float:
    """Return the mean GPU time of a job where demands are cut to `most_gpus`."""
    return math.fsum(
        share
        * (kind.mean_s or kind.median_s * math.exp(kind.log_deviation**2 / 2))
        * math.fsum(weight * min(gpus, most_gpus) for gpus, weight in kind.gpu_weights.items())
        / math.fsum(kind.gpu_weights.values())
        for share, kind in CLASSES
    )


def _offsets(count: int, days: float, block_mean_gaps: float, rng: random.Random) -> list[float]:
    """Return times of a bursty process, warped so that hours and days get the shares of their weights."""
    hours = math.ceil(days * DAY_S / HOUR_S)
    lengths_s = [min(HOUR_S, days * DAY_S - hour * HOUR_S) for hour in range(hours)]
    weights = [_hour_weight(hour) for hour in range(hours)]
    cumulative = [0.0, *accumulate(w * length_s for w, length_s in zip(weights, lengths_s, strict=True))]
    times = cox_times(count, rng, LOG_RATE_VARIANCE, block_mean_gaps)
    # Half a gap before the first arrival and after the last.
    scale = cumulative[-1] / (times[-1] - times[0] + 1.0)
    offsets = []
    for time in times:
        weighted = (time - times[0] + 0.5) * scale
        hour = min(bisect_right(cumulative, weighted), hours) - 1
        offsets.append(hour * HOUR_S + (weighted - cumulative[hour]) / weights[hour])
    return offsets


def _hour_weight(hour: int) -> float:
    day, hour_of_day = divmod(hour, len(HOUR_WEIGHTS))
    return HOUR_WEIGHTS[hour_of_day] * (WEEKEND_WEIGHT if day % 7 in WEEKEND_DAYS else 1.0)


def _demands(count: int, rng: random.Random) -> list[tuple[int, float, bool]]:
    """Return GPUs, running time (s), and whether it is scalable, of each job in a random order."""
    demands: list[tuple[int, float, bool]] = []
    share = 0.0
    for class_share, kind in CLASSES:
        share += class_share
        drawn = _of_class(kind, round(share * count) - len(demands), rng)
        scale = kind.mean_s / fmean(duration_s for _, duration_s in drawn) if kind.mean_s and drawn else 1.0
        demands += [(gpus, duration_s * scale, kind is SCALABLE) for gpus, duration_s in drawn]
    rng.shuffle(demands)
    return demands


def _of_class(kind: JobClass, count: int, rng: random.Random) -> list[tuple[int, float]]:
    normal = NormalDist(math.log(kind.median_s), kind.log_deviation)
    whole = math.fsum(kind.gpu_weights.values())
    drawn: list[tuple[int, float]] = []
    weight = 0.0
    for gpus, share in kind.gpu_weights.items():
        weight += share
        size = round(count * weight / whole) - len(drawn)
        for place in range(size):
            # The inverse has no values at 0 and 1.
            quantile = (place + min(max(rng.random(), 1e-9), 1 - 1e-9)) / size
            duration_s = math.exp(normal.inv_cdf(quantile))
            drawn.append((gpus, min(max(duration_s, kind.least_s), LONGEST_S)))
    return drawn
