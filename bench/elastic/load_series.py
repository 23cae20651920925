"""Loads that lenders are tried on, one every five minutes: a seeded daily swing, and real traces."""

import csv
import gzip
import math
import random
from collections.abc import Sequence
from pathlib import Path

INTERVAL_S = 300.0
_PER_DAY = 288
_PEAK = 0.95
"""The load that a trace's highest rate is scaled to: that of the thesis's cluster (section 3.2.1)."""

SERVEGEN = "infer_load_servegen.csv.gz"
GENAI = "infer_load_alibaba_genai2026.csv.gz"
SERVEGEN_MODELS = ("m-large", "m-mid", "m-small")
"""Those with 14 days."""


def swing(days: int, seed: int, low: float = 0.42, high: float = 0.95, burst: float = 0.02) -> list[float]:
    """A load that swings between `low` and `high` by hour of the day, as in section 3.7.1.

    A cosine to the power that makes the mean 65 %, with levels that differ from day to day by some per cent,
    and bursts from one interval to the next whose median is `burst` (section 3.7.1, headroom).
    """
    rng = random.Random(seed)
    middle = (low + high) / 2 - 0.03
    deviation = burst / (0.6745 * math.sqrt(2))
    """The median of the absolute difference of two normal variables is 0.6745 sqrt(2) of their deviation."""
    loads = []
    for _ in range(days):
        level = 1 + rng.gauss(0.0, 0.02)
        for index in range(_PER_DAY):
            hour = 24 * index / _PER_DAY
            daily = middle - (high - low) / 2 * math.cos(2 * math.pi * (hour - 5.0) / 24)
            loads.append(min(max(level * daily + rng.gauss(0.0, deviation), 0.0), 1.0))
    return loads


def servegen(folder: Path, model: str) -> list[float | None]:
    """Request rates of a model; None where the trace has no data. Each of its ten minutes is two intervals,
    the second half way to the next."""
    rows = [row for row in _rows(folder / SERVEGEN) if row["model"] == model]
    rates = [float(row["rate_rps"]) or None for row in rows]
    peak = max(rate for rate in rates if rate is not None)
    loads = [None if rate is None else _PEAK * rate / peak for rate in rates]
    halved: list[float | None] = []
    for load, following in zip(loads, [*loads[1:], loads[-1]], strict=True):
        halved += [load, None if load is None or following is None else (load + following) / 2]
    return halved


def genai(folder: Path) -> list[float | None]:
    """Busy pods of an inference fleet, 23 hours."""
    busy = [float(row["busy_pods_ge5pct"]) for row in _rows(folder / GENAI)]
    return [_PEAK * pods / max(busy) for pods in busy]


def _rows(path: Path) -> Sequence[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))
