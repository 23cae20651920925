"""Figures of a zone of mixture-of-experts models: ranks, completion times, throughput of services, and the
load of the busiest device before and after placements."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from infra.figures.distribution import Distribution
from infra.figures.experts.jobs import MoeTimeline
from infra.figures.jobs import Jobs
from infra.figures.nodes import Nodes
from infra.figures.zone import Table, ZoneFigures
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.experts.outcomes import PlacementDecided, PlacementReason, RanksChanged, RanksChangeReason
from schemas.experts.reports import RoutingReport

_ROWS_KEPT = 10_000
"""Number of the latest rows of placements that are kept where jobs leave the figures."""


class ExpertsFigures(ZoneFigures[MoeTimeline]):
    """Figures of one experts zone. Counts are of all jobs; times and loads are of those that are kept."""

    JOB = MoeTimeline

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self._layers: deque[dict[str, Any]] = deque(maxlen=None if jobs.kept is None else _ROWS_KEPT)
        """Rows of the latest decisions per layer."""

    @property
    def running(self) -> int:
        """Number of jobs with ranks."""
        return sum(bool(job.members) for job in self.admitted())

    @property
    def waiting(self) -> int:
        """Number of admitted jobs without ranks."""
        return sum(not job.members for job in self.admitted())

    @property
    def ranks(self) -> int:
        """Number of ranks of all jobs."""
        return sum(member.ranks for job in self.admitted() for member in job.members)

    @property
    def gpus(self) -> int:
        """Number of devices of the zone's present nodes."""
        return self._nodes.gpus(self._zone)

    @property
    def placements(self) -> dict[str, int]:
        """Number of placements by reason."""
        totals = self.totals()
        return {reason: totals[reason] for reason in get_args(PlacementReason)}

    @property
    def changes(self) -> Counter[str]:
        """Number of changes of ranks, by reason."""
        totals = self.totals()
        return Counter({reason: totals[reason] for reason in get_args(RanksChangeReason) if totals[reason]})

    @property
    def jct(self) -> Distribution:
        """Completion times of jobs, from submission to end."""
        done = (job for job in self.kept() if job.state == "completed")
        return Distribution.of([job.jct_s for job in done if job.jct_s is not None])

    @property
    def batch_s(self) -> float | None:
        """Mean duration of services' batches after their profile stages; None before the first."""
        services = [job for job in self.kept() if job.is_service]
        batches = sum(job.batches for job in services)
        return math.fsum(job.interval_s for job in services) / batches if batches else None

    def fold_event(self, time_s: float, event: Event) -> None:  # noqa: ARG002
        """Fold an event of the cell."""
        match event:
            case RoutingReport() if (job := self._job(event.job_id)) is not None and job.is_service:
                job.report(event)

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        """Fold a decision of the cell."""
        match outcome:
            case RanksChanged(zone=self._zone) if (job := self._job(outcome.job_id)) is not None:
                job.change(time_s, outcome)
            case PlacementDecided(zone=self._zone):
                self._layers.extend(_rows(time_s, outcome))
                if (job := self._job(outcome.job_id)) is not None:
                    job.place(outcome)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "ranks": self.ranks,
            "devices": self.gpus,
            "rank_changes": dict(sorted(self.changes.items())),
            "jobs": self.submitted,
            "completed": self.completed,
            "jct": self.jct.as_json(),
            "gave_way": self.changes["gave_way"],
            "batch_s": self.batch_s,
            "placements": self.placements,
            "load_before": self.mean_of_shifts("load_before"),
            "load": self.mean_of_shifts("load"),
        }

    def tables(self) -> Mapping[str, Table]:
        """Return `jobs`, a row per job as submitted, and `placements`, a row per placed layer."""
        return {"jobs": [job.as_row() for job in self.kept()], "placements": list(self._layers)}

    def mean_of_shifts(self, column: str) -> float | None:
        """Return the mean of a load over the layers that were placed as popularity shifted; None without
        any."""
        found = [row[column] for row in self._layers if row["reason"] == "popularity_shifted"]
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
