"""Load of a cluster that serves inference, every five minutes: by the hour of day, and as events.

A load is the fraction of GPUs that serve at least one request (thesis, Figure 3.1).
"""

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from infra.workloads.elastic.requests import DAY_S, HOUR_S
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from schemas.inference import InferenceLoadReported

INTERVAL_S = 300.0
"""Interval of the reports of loads (Figure 3.1), on which the lender acts."""

TROUGH = 0.42
PEAK = 0.95
"""Lowest and highest load (Figure 3.1)."""

HOUR_LEVELS = (
    *(0.86, 0.68, 0.48, 0.30, 0.19, 0.04, 0.00, 0.04, 0.13, 0.22, 0.29, 0.35),
    *(0.39, 0.37, 0.34, 0.31, 0.31, 0.35, 0.46, 0.70, 0.94, 1.00, 1.00, 0.98),
)
"""Load at each full hour, from 0 (trough) to 1 (peak), linear in between. The peak lasts for about four hours
at night, the trough is before dawn, and the mean load is 65 % (section 3.2.1)."""

BURST_DEVIATION = 0.033
BURST_MEMORY = 0.5
"""Standard deviation and autocorrelation, from one report to the next, of the bursts on top of the daily
curve: half of the changes within five minutes are larger than 2 % of the capacity (section 3.7.1)."""


_offset_s = attrgetter("offset_s")


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The load at one time."""

    offset_s: float
    """Time since the start of the workload: midnight, local time."""
    load: float
    """Load from 0 to 1."""


def generate_load(seed: int, days: float, trough: float = TROUGH, peak: float = PEAK) -> list[LoadSample]:
    """Generate a load that rises and falls with the hour of day, between trough and peak.

    Raises:
        WorkloadError: the days or the range are invalid.
    """
    if not 0 < days < math.inf or not 0 <= trough < peak <= 1:
        raise WorkloadError(
            f"a load of {days} days from {trough} to {peak}: expected more than 0 days, and "
            "0 <= trough < peak <= 1"
        )
    draws = random.Random(f"{seed}/elastic/load")
    innovation = BURST_DEVIATION * math.sqrt(1 - BURST_MEMORY**2)
    burst = draws.gauss(0, BURST_DEVIATION)
    samples = []
    for step in range(math.ceil(days * DAY_S / INTERVAL_S)):
        offset_s = step * INTERVAL_S
        level = trough + (peak - trough) * _level(offset_s)
        samples.append(LoadSample(offset_s, min(max(level + burst, trough), peak)))
        burst = BURST_MEMORY * burst + draws.gauss(0, innovation)
    return samples


def _level(offset_s: float) -> float:
    hour, part = divmod(offset_s / HOUR_S, 1.0)
    before, after = (HOUR_LEVELS[int(hour + more) % len(HOUR_LEVELS)] for more in (0, 1))
    return before + part * (after - before)


def resampled(samples: Sequence[LoadSample], days: float) -> list[LoadSample]:
    """Return the load every five minutes for `days`: linear between samples, and repeated where they end.

    The period is as many whole days as the samples span, one at least, so that hours of day stay in place.
    Its end goes over linearly into its beginning.

    Raises:
        WorkloadError: there are no samples, they are out of order, or the days are invalid.
    """
    if not samples or any(later.offset_s <= sooner.offset_s for sooner, later in pairwise(samples)):
        raise WorkloadError("a load needs samples, each later than the one before")
    if not 0 < days < math.inf:
        raise WorkloadError(f"a load of {days} days: expected more than 0")
    first_s, last_s = samples[0].offset_s, samples[-1].offset_s
    # A day of samples ends one gap before the next day begins.
    gap_s = (last_s - first_s) / (len(samples) - 1) if len(samples) > 1 else INTERVAL_S
    period_s = max(math.floor((last_s - first_s + gap_s) / DAY_S), 1) * DAY_S
    end_s = first_s + period_s
    cycle = [sample for sample in samples if sample.offset_s < end_s]
    cycle.append(LoadSample(end_s, cycle[0].load))
    whole = samples if last_s >= end_s else cycle
    times = [step * INTERVAL_S for step in range(math.ceil(days * DAY_S / INTERVAL_S))]
    return [
        LoadSample(
            time_s,
            _between(time_s, whole)
            if first_s <= time_s <= whole[-1].offset_s
            else _between(first_s + (time_s - first_s) % period_s, cycle),
        )
        for time_s in times
    ]


def _between(time_s: float, samples: Sequence[LoadSample]) -> float:
    after = min(max(bisect_right(samples, time_s, key=_offset_s), 1), len(samples) - 1)
    sooner, later = samples[after - 1], samples[after]
    part = (time_s - sooner.offset_s) / (later.offset_s - sooner.offset_s)
    return sooner.load + part * (later.load - sooner.load)


def load_reports(
    samples: Sequence[LoadSample], cell: str, zone: str, start_s: float
) -> list[TimedEvent[InferenceLoadReported]]:
    """Return the samples as events of a zone that lends, each sent when it was measured.

    Raises:
        WorkloadError: the last time is too late for events.
    """
    if samples:
        check_time(start_s + samples[-1].offset_s)
    return [
        TimedEvent(
            start_s + sample.offset_s,
            InferenceLoadReported(cell=cell, zone=zone, time_s=start_s + sample.offset_s, load=sample.load),
        )
        for sample in samples
    ]
