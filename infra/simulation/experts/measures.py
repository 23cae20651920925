"""Measures of a zone of mixture-of-experts models: completion times, throughput of services, and the load of
the busiest device before and after placements."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.simulation.distribution import Distribution
from infra.simulation.measures import Table
from infra.simulation.simulator import Step
from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.experts.outcomes import PlacementDecided, RanksChanged
from schemas.experts.reports import ExpertsRouted
from schemas.experts.workload import MoeServeWorkload
from schemas.jobs import JobSubmitted

_REASONS = ("initial", "popularity_shifted", "devices_changed")


@dataclass
class _Line:
    """Row of a file about one job. Times are Unix seconds."""

    user: str
    is_service: bool
    ranks: int
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    state: str = "waiting"
    generations: int = 0
    gave_way: int = 0
    """Number of times that its ranks went to another user's job that had waited for too long."""
    batches: int = 0
    """Batches that were served after the profile stage."""
    interval_s: float = 0.0
    """Time in which they were served."""
    placements: Counter[str] = field(default_factory=Counter)
    """Decided placements by reason."""


class ExpertsMeasures:
    """Measures as in `ZoneMeasures`. Times are those of the events, not of the cell's clock."""

    def __init__(self, cell: CellConfigured, zone: str) -> None:  # noqa: ARG002
        self._zone = zone
        self._jobs: dict[str, _Line] = {}
        self._placements: list[dict[str, Any]] = []
        """Rows per decision and layer."""

    def take(self, step: Step) -> None:
        """Add the next step of the simulation."""
        event = step.entry.envelope.event
        match event:
            case JobSubmitted(zone=self._zone):
                is_service = isinstance(event.workload, MoeServeWorkload)
                ranks = getattr(event.workload, "ranks", 0)
                line = _Line(event.user, is_service, ranks, step.time_s)
                self._jobs.setdefault(event.job_id, line)
            case ExpertsRouted() if (job := self._jobs.get(event.job_id)) is not None and job.is_service:
                job.batches += event.batches
                job.interval_s += event.interval_s
        for decision in step.decisions:
            self._apply(step.time_s, decision.outcome)

    @property
    def batch_s(self) -> float | None:
        """Mean duration of services' batches after their profile stages; None before the first."""
        batches = sum(job.batches for job in self._jobs.values())
        return math.fsum(job.interval_s for job in self._jobs.values()) / batches if batches else None

    @property
    def jct(self) -> Distribution:
        """Completion times of jobs, from submission to end."""
        return Distribution.of(
            [
                job.ended_s - job.submitted_s
                for job in self._jobs.values()
                if job.state == "completed" and job.ended_s is not None
            ]
        )

    @property
    def gave_way(self) -> int:
        """Number of times that a job lost its ranks to another user's job."""
        return sum(job.gave_way for job in self._jobs.values())

    @property
    def placements(self) -> Counter[str]:
        """Number of decided placements by reason."""
        return sum((job.placements for job in self._jobs.values()), Counter[str]())

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for a summary."""
        yield "job completion time", self.jct.row()
        if self.batch_s is not None:
            yield "batch of a service, mean", f"{1_000 * self.batch_s:,.0f} ms"
        counts = self.placements
        text = ", ".join(f"{counts[reason]} {reason.replace('_', ' ')}" for reason in _REASONS)
        yield "placements", text
        before, after = self._mean("load_before"), self._mean("load")
        if before is not None and after is not None:
            yield (
                "busiest device where popularity shifted",
                f"{before:.2f} -> {after:.2f} of the mean",
            )

    def as_json(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        return {
            "jobs": len(self._jobs),
            "completed": sum(job.state == "completed" for job in self._jobs.values()),
            "jct": self.jct.as_json(),
            "gave_way": self.gave_way,
            "batch_s": self.batch_s,
            "placements": {reason: self.placements[reason] for reason in _REASONS},
            "load_before": self._mean("load_before"),
            "load": self._mean("load"),
        }

    def tables(self) -> Mapping[str, Table]:
        """Return `jobs`, a row per job as submitted, and `placements`, a row per placed layer."""
        jobs = [
            {
                "job_id": job_id,
                "user": job.user,
                "kind": "moe-serve" if job.is_service else "moe-train",
                "ranks": job.ranks,
                "state": job.state,
                "submitted_s": job.submitted_s,
                "started_s": job.started_s,
                "ended_s": job.ended_s,
                "generations": job.generations,
                "gave_way": job.gave_way,
                "batch_s": job.interval_s / job.batches if job.batches else None,
                "placements": job.placements.total(),
            }
            for job_id, job in self._jobs.items()
        ]
        return {"jobs": jobs, "placements": self._placements}

    def _apply(self, time_s: float, outcome: Outcome) -> None:
        match outcome:
            case RanksChanged(zone=self._zone) if outcome.members:
                job = self._jobs[outcome.job_id]
                job.generations = outcome.generation
                job.started_s = time_s if job.started_s is None else job.started_s
            case RanksChanged(zone=self._zone, reason="gave_way"):
                self._jobs[outcome.job_id].gave_way += 1
            case PlacementDecided(zone=self._zone):
                self._jobs[outcome.job_id].placements[outcome.reason] += 1
                self._placements += _rows(time_s, outcome)
            case JobCompleted() | JobRefunded() | JobWithdrawn() | JobRejected():
                ended = self._jobs.get(outcome.job_id)
                if ended is not None and not outcome.is_of_another_job:
                    ended.state, ended.ended_s = outcome.STATE, time_s

    def _mean(self, column: str) -> float | None:
        found = [row[column] for row in self._placements if row["reason"] == "popularity_shifted"]
        return math.fsum(found) / len(found) if found else None


def _rows(time_s: float, decision: PlacementDecided) -> Iterator[dict[str, Any]]:
    for layer in decision.layers:
        yield {
            "time_s": time_s,
            "job_id": decision.job_id,
            "revision": decision.revision,
            "reason": decision.reason,
            "layer": layer.placement.layer,
            "load_before": layer.load_before,
            "load": layer.load,
            "gain": layer.gain,
            "most_replicas": max(layer.replicas),
            "reported_tokens": layer.reported_tokens,
        }
