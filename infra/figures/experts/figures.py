"""Figures of a zone of mixture-of-experts models: ranks, completion times, throughput of services, and the
load of the busiest device before and after placements."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from infra.figures.distribution import Distribution
from infra.figures.experts.jobs import MoeTimeline
from infra.figures.jobs import Jobs, JobTimeline
from infra.figures.nodes import Node, Nodes
from infra.figures.zone import Table, ZoneFigures
from infra.text import counted
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobCompleted
from schemas.experts.commands import RankMember
from schemas.experts.outcomes import PlacementDecided, RanksChanged
from schemas.experts.reports import RoutingReport
from schemas.jobs import JobSubmitted

_REASONS = ("initial", "popularity_shifted", "devices_changed")
_SHOWN_NODES = 3


class ExpertsFigures(ZoneFigures[MoeTimeline]):
    """Figures of one experts zone. Counts are of all jobs; times and loads are of those that are kept."""

    JOB = MoeTimeline

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self._submitted = self._completed = 0
        self._placements: Counter[str] = Counter()
        """Number of placements, by reason."""
        self._changes: Counter[str] = Counter()
        """Number of changes of ranks, by reason."""
        self._layers: deque[dict[str, Any]] = deque(maxlen=jobs.kept)
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
            case JobSubmitted(zone=self._zone):
                self._submitted += self._has_begun(event)
            case RoutingReport() if (job := self._job(event.job_id)) is not None and job.is_service:
                job.report(event)

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        """Fold a decision of the cell."""
        match outcome:
            case RanksChanged(zone=self._zone):
                self._changes[outcome.reason] += 1
                if (job := self._job(outcome.job_id)) is not None:
                    job.change(time_s, outcome)
            case PlacementDecided(zone=self._zone):
                self._placements[outcome.reason] += 1
                self._layers.extend(_rows(time_s, outcome))
                if (job := self._job(outcome.job_id)) is not None:
                    job.place(outcome)
            case JobCompleted(zone=self._zone):
                self._completed += 1

    def headline(self) -> str:
        """Return running and waiting jobs, and the load of the busiest devices of services."""
        if not self._submitted:
            return ""
        parts = [f"{self.running} running on {counted(self.ranks, 'rank')}", f"{self.waiting} queued"]
        loads = [load for job in self.admitted() if job.members and (load := job.busiest_load) is not None]
        if loads:
            parts.append(f"busiest device {sum(loads) / len(loads):.2f} of the mean")
        return ", ".join(parts)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for a summary."""
        if self.running or self.waiting:
            yield "jobs with ranks, and without", f"{self.running}, {self.waiting}"
            yield "devices with ranks", f"{self.ranks} of {self._nodes.gpus(self._zone)}"
        yield "ranks lost with nodes", str(self._changes["node_lost"] + self._changes["preempted"])
        yield "jobs that gave way", str(self._changes["gave_way"])
        yield "job completion time", self.jct.row()
        if self.batch_s is not None:
            yield "batch of a service, mean", f"{1_000 * self.batch_s:,.0f} ms"
        yield (
            "placements",
            ", ".join(f"{self._placements[reason]} {reason.replace('_', ' ')}" for reason in _REASONS),
        )
        before, after = self._mean("load_before"), self._mean("load")
        if before is not None and after is not None:
            yield "busiest device where popularity shifted", f"{before:.2f} -> {after:.2f} of the mean"

    def as_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "ranks": self.ranks,
            "devices": self._nodes.gpus(self._zone),
            "rank_changes": dict(sorted(self._changes.items())),
            "jobs": self._submitted,
            "completed": self._completed,
            "jct": self.jct.as_json(),
            "gave_way": self._changes["gave_way"],
            "batch_s": self.batch_s,
            "placements": {reason: self._placements[reason] for reason in _REASONS},
            "load_before": self._mean("load_before"),
            "load": self._mean("load"),
        }

    def tables(self) -> Mapping[str, Table]:
        """Return `jobs`, a row per job as submitted, and `placements`, a row per placed layer."""
        return {"jobs": [job.as_row() for job in self.kept()], "placements": list(self._layers)}

    def job_cells(self, job: JobTimeline) -> Mapping[str, str]:
        """Return its ranks, and its present placement."""
        if not isinstance(job, MoeTimeline) or job.state != "admitted":
            return {}
        cells = {"ranks": placed_on(job.members) if job.members else f"waits for {job.ranks}"}
        if job.busiest_load is not None:
            cells["placement"] = f"{job.revision}, busiest {job.busiest_load:.2f}"
        return cells

    def node_cells(self, node: Node) -> Mapping[str, str]:
        """Return the number of ranks on the node."""
        members = (member for job in self.admitted() for member in job.members)
        ranks = sum(member.ranks for member in members if member.node == node.node)
        return {"ranks": str(ranks)} if ranks else {}

    def _mean(self, column: str) -> float | None:
        found = [row[column] for row in self._layers if row["reason"] == "popularity_shifted"]
        return math.fsum(found) / len(found) if found else None


def placed_on(members: tuple[RankMember, ...]) -> str:
    """Return a text about the number of a job's ranks and their nodes."""
    shown = ", ".join(f"{member.node} x{member.ranks}" for member in members[:_SHOWN_NODES])
    more = len(members) - _SHOWN_NODES
    total = counted(sum(member.ranks for member in members), "rank")
    return f"{total} on {shown}{f' and {more} more' if more > 0 else ''}"


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
