"""Load of a cluster that serves inference, every five minutes: by the hour of day, or from files of three
forms that differ by their headers; and as events.

A load is the fraction of GPUs that serve at least one request (thesis, Figure 3.1).
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from infra.workloads.elastic.requests import DAY_S, HOUR_S
from infra.workloads.timed import TimedEvent, WorkloadError, check_time
from infra.workloads.trace import TraceError, TraceRow, opened_rows
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
    rng = random.Random(f"{seed}/elastic/load")
    innovation = BURST_DEVIATION * math.sqrt(1 - BURST_MEMORY**2)
    burst = rng.gauss(0, BURST_DEVIATION)
    samples = []
    for step in range(math.ceil(days * DAY_S / INTERVAL_S)):
        offset_s = step * INTERVAL_S
        level = trough + (peak - trough) * _level(offset_s)
        samples.append(LoadSample(offset_s, min(max(level + burst, trough), peak)))
        burst = BURST_MEMORY * burst + rng.gauss(0, innovation)
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


LOAD_COLUMNS = ("time_s", "load")
"""Millrace's own form: the load itself, from 0 to 1."""
RATE_COLUMNS = ("timestamp_s", "model", "rate_rps", "active_clients", "rate_weighted_client_cv")
"""ServeGen: requests per second of each model; a rate of zero is missing data."""
PODS_COLUMNS = (
    "timestamp_s",
    "gpu_pods",
    "mean_gpu_duty_pct",
    "busy_pods_ge5pct",
    "gen_qps_anon",
    "api_qps_anon",
)
"""Alibaba's inference fleet of 2026: the number of pods, and of busy ones."""

MAX_OFFSET_S = 366 * DAY_S
"""Longest valid load."""
MAX_RATE = 1e12
MAX_PODS = 1e9
SHORT_GAP_S = HOUR_S
"""Longest gap that is interpolated; a longer one is filled from the day before or after."""


def read_load(path: Path, days: float, peak: float = PEAK) -> list[LoadSample]:
    """Return the load of a file every five minutes for `days`, repeated by whole days where it is shorter.

    Millrace's own files have the load itself. In ServeGen's, each model has an equal share of the servers and
    loads it in proportion to its rate. In files of pods, the load is the fraction of busy pods. Both are
    scaled so that the highest load is `peak`. Missing rates are interpolated over an hour at most; longer
    gaps are filled with the same times of the nearest other day that has them.

    Raises:
        TraceError: the file cannot be read, or a row of it is invalid.
        WorkloadError: there is no time, or no peak.
    """
    if not 0 < peak <= 1:
        raise WorkloadError(f"a load with a peak of {peak}: expected more than 0, and 1 at most")
    with opened_rows(path, LOAD_COLUMNS, RATE_COLUMNS, PODS_COLUMNS) as (header, rows):
        if header == LOAD_COLUMNS:
            return resampled(_in_order(path, "time_s", _loads(rows)), days)
        samples = (
            _rates(path, rows) if header == RATE_COLUMNS else _in_order(path, "timestamp_s", _pods(rows))
        )
    highest = max(sample.load for sample in samples)
    if highest == 0:
        raise TraceError(f"{path}: the load is never above 0")
    scaled = [LoadSample(s.offset_s, min(s.load / highest * peak, peak)) for s in samples]
    return resampled(scaled, days)


def read_load_samples(path: Path) -> list[LoadSample]:
    """Return the loads of a file of Millrace's own form, at its own times.

    Raises:
        TraceError: the file cannot be read, or a row of it is invalid.
    """
    with opened_rows(path, LOAD_COLUMNS) as (_, rows):
        return _in_order(path, "time_s", _loads(rows))


def _in_order(path: Path, column: str, numbered: Iterable[tuple[TraceRow, LoadSample]]) -> list[LoadSample]:
    samples: list[LoadSample] = []
    for row, sample in numbered:
        if samples and sample.offset_s <= samples[-1].offset_s:
            raise row.fault(column, f"after the {samples[-1].offset_s:g} of the row above")
        samples.append(sample)
    if not samples:
        raise TraceError(f"{path}: has no load")
    return samples


def _loads(rows: Iterable[TraceRow]) -> Iterable[tuple[TraceRow, LoadSample]]:
    for row in rows:
        yield row, LoadSample(row.real("time_s", MAX_OFFSET_S), row.real("load", 1))


def _pods(rows: Iterable[TraceRow]) -> Iterable[tuple[TraceRow, LoadSample]]:
    for row in rows:
        pods = row.whole("gpu_pods", MAX_PODS)
        busy = row.real("busy_pods_ge5pct", pods)
        yield row, LoadSample(row.real("timestamp_s", MAX_OFFSET_S), busy / pods)


def _rates(path: Path, rows: Iterable[TraceRow]) -> list[LoadSample]:
    """Return the mean over all models of their rates, each divided by its highest."""
    numbered: dict[str, list[tuple[TraceRow, LoadSample]]] = {}
    for row in rows:
        rate = row.real("rate_rps", MAX_RATE)
        numbered.setdefault(row.fields["model"], []).append(
            (row, LoadSample(row.real("timestamp_s", MAX_OFFSET_S), rate))
        )
    models = {model: _in_order(path, "timestamp_s", found) for model, found in numbered.items()}
    if not models:
        raise TraceError(f"{path}: has no load")
    days = math.ceil(max(samples[-1].offset_s for samples in models.values()) / DAY_S) or 1
    curves = []
    for model, samples in models.items():
        highest = max(sample.load for sample in samples)
        if highest == 0:
            first, _ = numbered[model][0]
            raise first.fault("rate_rps", f"known: all are 0 of {model[:40]!r}, which means missing data")
        by_highest = [LoadSample(sample.offset_s, sample.load / highest) for sample in samples]
        curves.append(resampled(_completed(by_highest), days))
    return [
        LoadSample(together[0].offset_s, math.fsum(sample.load for sample in together) / len(curves))
        for together in zip(*curves, strict=True)
    ]


def _completed(samples: Sequence[LoadSample]) -> list[LoadSample]:
    """Return the samples without missing data; those of long gaps have values of other days."""
    known = [sample for sample in samples if sample.load > 0]
    by_time = {sample.offset_s: sample.load for sample in known}
    edges = [samples[0].offset_s, *(sample.offset_s for sample in known), samples[-1].offset_s]
    long_gaps = {start_s for start_s, end_s in pairwise(edges) if end_s - start_s > SHORT_GAP_S}
    completed, last_known_s = [], samples[0].offset_s
    for sample in samples:
        if sample.load > 0:
            last_known_s = sample.offset_s
            completed.append(sample)
        elif last_known_s in long_gaps:
            other = _other_day(sample.offset_s, by_time, samples[-1].offset_s)
            if other is not None:
                completed.append(LoadSample(sample.offset_s, other))
    return completed


def _other_day(time_s: float, by_time: dict[float, float], last_s: float) -> float | None:
    """Return the load at this time of the nearest day that has one; of two, the earlier."""
    for days in range(1, math.ceil(last_s / DAY_S) + 1):
        for other_s in (time_s - days * DAY_S, time_s + days * DAY_S):
            if other_s in by_time:
                return by_time[other_s]
    return None
