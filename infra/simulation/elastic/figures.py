"""What the measures of an elastic zone come to, in the thesis' terms (section 3.7)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PERCENTILES = (50, 75, 95, 99)
"""Those of Table 3.8."""


@dataclass(frozen=True)
class Distribution:
    """Of some times, in seconds; all 0 where there are none."""

    mean_s: float
    percentiles_s: dict[int, float]

    @classmethod
    def of(cls, times_s: Sequence[float]) -> "Distribution":
        """The mean, and percentiles linear between the two nearest ranks."""
        ordered = sorted(times_s)
        mean_s = math.fsum(ordered) / len(ordered) if ordered else 0.0
        return cls(mean_s, {percent: _percentile(ordered, percent) for percent in PERCENTILES})

    def as_json(self) -> dict[str, float]:
        """Plain values."""
        return {"mean_s": self.mean_s} | {f"p{name}_s": value for name, value in self.percentiles_s.items()}

    def row(self) -> str:
        """For people."""
        parts = ", ".join(f"{name} %: {value:,.0f} s" for name, value in self.percentiles_s.items())
        return f"mean {self.mean_s:,.0f} s; {parts}"


def _percentile(ordered: Sequence[float], percent: int) -> float:
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class ElasticFigures:
    """Of one zone and one simulation."""

    jobs: int
    """Submitted."""
    completed: int
    queuing: Distribution
    """Of the jobs that were completed, after preemptions too."""
    jct: Distribution
    """Job completion times of the same."""
    span_s: float
    """From the start to the last job or load, which usage is measured over."""
    training_usage: float
    """The part of the zone's own GPUs that jobs had."""
    overall_usage: float
    """The part of all GPUs, of inference servers too, that jobs had or that served requests (Table 3.5,
    note 1)."""
    on_loan_usage: float
    """The part of the GPUs on loan that jobs had; 0 where there were none."""
    preemptions: int
    preemption_ratio: float
    """Preemptions over submitted jobs (Table 3.5, note 2)."""
    resizes: int
    """How often running jobs got more, fewer or other workers."""
    reclaims: int
    """How often servers were wanted back."""
    reclaimed_servers: int
    flexible_servers: int
    """Those of them that were given back without a preemption."""
    collateral_damage: float
    """GPUs vacated beyond those that were wanted back, over these (section 3.7.3)."""
    overdue_reclaims: int
    """Those that were not met in time."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "queuing": self.queuing.as_json(), "jct": self.jct.as_json()}

    def rows(self) -> Iterator[tuple[str, str]]:
        """For people."""
        yield "queuing time", self.queuing.row()
        yield "job completion time", self.jct.row()
        yield "GPU usage: training", f"{self.training_usage:.1%}"
        yield "GPU usage: training and inference", f"{self.overall_usage:.1%}"
        yield "GPU usage: servers on loan", f"{self.on_loan_usage:.1%}"
        yield "preemptions, and per job", f"{self.preemptions}, {self.preemption_ratio:.2%}"
        yield "changes of running jobs' workers", str(self.resizes)
        yield (
            "reclaims, servers, and those without a preemption",
            f"{self.reclaims}, {self.reclaimed_servers}, {self.flexible_servers}",
        )
        yield "collateral damage", f"{self.collateral_damage:.1%}"
        yield "overdue reclaims", str(self.overdue_reclaims)
