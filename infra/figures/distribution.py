"""Summary of times that simulations measure: mean and percentiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 75, 95, 99)
"""Percentiles of the thesis on Lyra (Table 3.8)."""


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles of times in seconds; all 0 without any times."""

    mean_s: float
    percentiles_s: dict[int, float]

    @classmethod
    def of(cls, times_s: Sequence[float]) -> "Distribution":
        """Compute the mean, and percentiles linear between the two nearest ranks."""
        ordered = sorted(times_s)
        mean_s = math.fsum(ordered) / len(ordered) if ordered else 0.0
        return cls(mean_s, {percent: _percentile(ordered, percent) for percent in PERCENTILES})

    def as_json(self) -> dict[str, float]:
        """Return a JSON object."""
        return {"mean_s": self.mean_s} | {f"p{name}_s": value for name, value in self.percentiles_s.items()}


def _percentile(ordered: Sequence[float], percent: int) -> float:
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
