"""Arrival times, users and GPU times of jobs: cut from a trace, or generated like one.

The figures come from the Philly trace (80,702 jobs of 2017, CC-BY-4.0); see docs/workloads.md.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.workloads.timed import WorkloadError
from infra.workloads.trace import TraceJob, read_trace

BLOCK_MEAN_GAPS = 10
"""Length of a block with a constant arrival rate (mean gaps)."""

LOG_RATE_VARIANCE = 1.7
"""Variance of the natural logarithm of the arrival rate. With it, the coefficient of variation of the gaps is
2.5, as on Philly. In a Poisson process, it is 1."""

RATE_MEMORY = 0.5
"""Autocorrelation of the logarithm of the rate between successive blocks. With it, the number of arrivals in
ten mean gaps has an autocorrelation of 0.47, as on Philly."""

TENANT_SHARES = (0.505, 0.190, 0.122, 0.091, 0.024, 0.017, 0.017, 0.014, 0.009, 0.005, 0.006)
"""Shares of the jobs of Philly's virtual clusters, the smallest ones together."""

TENANT_MEMORY = 0.70
"""Probability that a job gets the tenant of the job before it; otherwise, a tenant is drawn by the shares.
On Philly, 80 % of the jobs follow a job of the same tenant. With draws by the shares alone, 32 % would."""

MEDIAN_DURATION_S = 1_173.0
LOG_DURATION_DEVIATION = 2.14
"""Philly's durations: median, and standard deviation of the natural logarithm."""

GPU_COUNTS = {1: 0.9324, 2: 0.0219, 4: 0.0228, 8: 0.0196, 16: 0.0023, 32: 0.0010}
"""Shares of Philly's jobs by number of GPUs."""


@dataclass(frozen=True)
class Arrival:
    """A job as a trace records it."""

    offset_s: float
    """Time since the workload's start."""
    user: str
    gpu_s: float


def arrivals_of(trace: Path | None, count: int, span_s: float, seed: int) -> list[Arrival]:
    """Return `count` arrivals: from a trace if one is given, else generated.

    Raises:
        WorkloadError: the trace is too short.
        TraceError: the file is not a valid trace.
    """
    if trace is None:
        return generate(count, span_s, seed)
    traced = read_trace(trace)
    try:
        return cut_from_trace(traced, count, span_s, seed)
    except ValueError as error:
        raise WorkloadError(f"{trace}: {error}") from None


def cut_from_trace(jobs: Sequence[TraceJob], count: int, span_s: float, seed: int) -> list[Arrival]:
    """Return `count` consecutive jobs from a seeded place in the trace, their time scaled to `span_s`.

    Raises:
        ValueError: the trace has fewer jobs, or no time passes in the whole of it.
    """
    place = place_in_trace(jobs, count, seed)
    return stretched(jobs[place : place + count], span_s)


def place_in_trace(jobs: Sequence[TraceJob], count: int, seed: int, first: int = 0) -> int:
    """Return the seeded index, `first` at least, of `count` consecutive jobs that are not all at one time.

    Raises:
        ValueError: the trace has too few jobs, or no time passes in the whole of it.
    """
    if len(jobs) < first + count:
        raise ValueError(f"the trace has {len(jobs)} jobs, {first + count} are needed")
    if count > 1 and jobs[-1].submit_time_s == jobs[first].submit_time_s:
        after = f" after the first {first}" if first else ""
        raise ValueError(f"all jobs of the trace{after} are submitted at the same time")
    places = len(jobs) - first - count + 1
    place = random.Random(f"{seed}/trace").randrange(places)
    while count > 1 and _simultaneous(jobs[first + place : first + place + count]):
        # A burst fills the whole run: step back, around the end if need be, until the run spans some time.
        place = (place - 1) % places
    return first + place


def stretched(run: Sequence[TraceJob], span_s: float) -> list[Arrival]:
    """Return jobs of a trace with their time scaled linearly to `span_s`.

    One factor scales every gap, so the burstiness of the trace is kept. If all jobs have the same time, they
    arrive at 0.
    """
    return _scaled([Arrival(job.submit_time_s, job.user, job.gpu_s) for job in run], span_s)


def generate(count: int, span_s: float, seed: int) -> list[Arrival]:
    """Generate `count` arrivals within `span_s`, with the burstiness and the shares of tenants of Philly.

    Arrivals are a Cox process. Its rate is constant for a block of `BLOCK_MEAN_GAPS`. From block to block,
    the logarithm of the rate is a stationary Gaussian autoregression.
    """
    users = tenants(count, random.Random(f"{seed}/tenants"))
    sizes = random.Random(f"{seed}/sizes")
    times = cox_times(count, random.Random(f"{seed}/arrivals"))
    counts, weights = list(GPU_COUNTS), list(GPU_COUNTS.values())
    arrivals = []
    for time, user in zip(times, users, strict=True):
        duration_s = MEDIAN_DURATION_S * math.exp(sizes.gauss(0, LOG_DURATION_DEVIATION))
        (gpus,) = sizes.choices(counts, weights)
        arrivals.append(Arrival(time, user, duration_s * gpus))
    return _scaled(arrivals, span_s)


def cox_times(
    count: int,
    rng: random.Random,
    log_rate_variance: float = LOG_RATE_VARIANCE,
    block_mean_gaps: float = BLOCK_MEAN_GAPS,
) -> list[float]:
    """Return times of arrival, in mean gaps, of the process that `generate` describes."""
    innovation = math.sqrt(log_rate_variance * (1 - RATE_MEMORY**2))
    log_rate = rng.gauss(0, math.sqrt(log_rate_variance))
    times: list[float] = []
    block = 0
    while len(times) < count:
        # Subtracting half the variance makes the mean rate one arrival per unit of time.
        rate = math.exp(log_rate - log_rate_variance / 2)
        time = block * block_mean_gaps + rng.expovariate(rate)
        while time < (block + 1) * block_mean_gaps and len(times) < count:
            times.append(time)
            time += rng.expovariate(rate)
        log_rate = RATE_MEMORY * log_rate + rng.gauss(0, innovation)
        block += 1
    return times


def tenants(count: int, rng: random.Random) -> list[str]:
    """Return the user of each job. Shares of users, and runs of jobs of one user, are those of Philly."""
    names = [f"tenant-{index + 1}" for index in range(len(TENANT_SHARES))]
    users: list[str] = []
    for _ in range(count):
        if users and rng.random() < TENANT_MEMORY:
            users.append(users[-1])
        else:
            users += rng.choices(names, TENANT_SHARES)
    return users


def _simultaneous(run: Sequence[TraceJob]) -> bool:
    return run[-1].submit_time_s == run[0].submit_time_s


def _scaled(arrivals: list[Arrival], span_s: float) -> list[Arrival]:
    if not arrivals:
        return []
    start_s, end_s = arrivals[0].offset_s, arrivals[-1].offset_s
    scale = span_s / (end_s - start_s) if end_s > start_s else 0.0
    return [
        Arrival((arrival.offset_s - start_s) * scale, arrival.user, arrival.gpu_s) for arrival in arrivals
    ]
