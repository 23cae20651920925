"""Reading the load of inference servers from files of three forms, which differ by their headers."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from infra.workloads.elastic.loads import PEAK, LoadSample, resampled
from infra.workloads.elastic.requests import DAY_S, HOUR_S
from infra.workloads.rows import TraceError, TraceRow, opened_rows
from infra.workloads.timed import WorkloadError

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
