"""Figures of a merging zone, in the terms of Ymir's evaluation (section 7)."""

from dataclasses import asdict, dataclass
from typing import Any

from infra.figures.distribution import Distribution
from solvers.merging.errors import GainFigures, IterationFigures


@dataclass(frozen=True)
class Fairness:
    """Finish-time fairness rho of completed jobs. If it is above 1, sharing the zone has delayed the job."""

    mean: float
    worst: float
    hurt_share: float
    """Share of the jobs with rho above 1."""


@dataclass(frozen=True)
class MergingEvaluation:
    """Figures of one zone and one simulation."""

    jobs: int
    """Number of submitted jobs."""
    completed: int
    jct: Distribution
    """Job completion times."""
    makespan_s: float
    """Time from the first submission to the last end."""
    temporal_share: float
    """Share of the completed jobs that provided or received weights (A -> B)."""
    spatial_share: float
    """Share of the completed jobs that were trained with another in one run (A || B)."""
    merges_undone: int
    """Number of merges that were undone because they brought no gain."""
    saved_s: float
    """Time that merges saved, with one GPU."""
    profile_gpu_s: float
    """GPU time of ended profile runs; each counts from its order to its end."""
    preemptions: int
    """Number of times that a job lost its GPUs to others."""
    gain: GainFigures
    """Errors of forecast gains (Table 2), for completed merged jobs."""
    iterations_alone: IterationFigures
    """Errors of forecast iterations, for jobs that ran alone."""
    iterations_merged: IterationFigures
    fairness: Fairness | None
    """Finish-time fairness; None before the first completed job. Also None for figures from a log: step times
    are only in solver problems, and a log has none."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **asdict(self),
            "gain": self.gain._asdict(),
            "iterations_alone": self.iterations_alone._asdict(),
            "iterations_merged": self.iterations_merged._asdict(),
            "jct": self.jct.as_json(),
        }
