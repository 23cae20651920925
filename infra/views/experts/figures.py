"""Figures of mixture-of-experts jobs: their ranks, waiting jobs, and changes of placements."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.views.jobs import Job
from infra.views.nodes import Node
from infra.views.policy import PolicyFigures
from infra.views.text import counted
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn
from schemas.experts.commands import RankMember
from schemas.experts.outcomes import PlacementDecided, QueuedRanks, RanksChanged, ZoneServed

_SHOWN_NODES = 3


@dataclass
class _Course:
    """One job so far."""

    needed: int
    """Ranks that it waits for, or has."""
    members: tuple[RankMember, ...] = ()
    revision: int = 0
    """Revision of the present placement."""
    loads: dict[int, float] = field(default_factory=dict)
    """Load of the busiest device over the mean at the last placement of a layer, by layer."""


class ExpertsFigures(PolicyFigures):
    """Jobs, ranks and placements over all experts zones of a cell."""

    NAME = "experts"

    def __init__(self) -> None:
        self._live: dict[str, _Course] = {}
        self._placements: Counter[str] = Counter()
        """Number of placements, by reason."""
        self._changes: Counter[str] = Counter()
        """Number of changes of ranks, by reason."""
        self._served: dict[str, ZoneServed] = {}
        """Latest state of each zone."""

    @property
    def running(self) -> int:
        """Number of jobs with ranks."""
        return sum(bool(job.members) for job in self._live.values())

    @property
    def waiting(self) -> int:
        """Number of jobs without ranks."""
        return len(self._live) - self.running

    @property
    def ranks(self) -> int:
        """Number of ranks of all jobs."""
        return sum(member.ranks for job in self._live.values() for member in job.members)

    def take_decision(self, decision: Decision) -> None:
        """Fold a decision; those of other policies have no effect."""
        match outcome := decision.outcome:
            case JobAdmitted(evidence=QueuedRanks() as place):
                self._live[outcome.job_id] = _Course(place.ranks)
            case RanksChanged() if outcome.job_id in self._live:
                self._changes[outcome.reason] += 1
                self._live[outcome.job_id].members = outcome.members
            case PlacementDecided() if outcome.job_id in self._live:
                self._placements[outcome.reason] += 1
                job = self._live[outcome.job_id]
                job.revision = outcome.revision
                job.loads.update({layer.placement.layer: layer.load for layer in outcome.layers})
            case JobCompleted() | JobRefunded() | JobWithdrawn():
                self._live.pop(outcome.job_id, None)
            case ZoneServed():
                self._served[outcome.zone] = outcome

    def headline(self) -> str:
        """Return running and waiting jobs, and the load of the busiest devices of services."""
        if not (self._live or self._changes):
            return ""
        parts = [f"{self.running} running on {counted(self.ranks, 'rank')}", f"{self.waiting} queued"]
        loads = [model.busiest_load for zone in self._served.values() for model in zone.serving]
        if loads:
            parts.append(f"busiest device {sum(loads) / len(loads):.2f} of the mean")
        return ", ".join(parts)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for a summary."""
        if self._changes:
            yield "ranks lost with nodes", str(self._changes["node_lost"] + self._changes["preempted"])
            yield "jobs that gave way", str(self._changes["gave_way"])
            moved = self._placements["popularity_shifted"]
            yield "placements, of them for popularity", f"{self._placements.total()}, {moved}"

    def as_json(self) -> dict[str, Any]:
        """Return all figures; none without any such job."""
        if not (self._live or self._changes):
            return {}
        return {
            "running": self.running,
            "waiting": self.waiting,
            "ranks": self.ranks,
            "rank_changes": dict(sorted(self._changes.items())),
            "placements": dict(sorted(self._placements.items())),
        }

    def job_cells(self, job: Job) -> Mapping[str, str]:
        """Return its ranks, and its present placement."""
        course = self._live.get(job.job_id)
        if course is None:
            return {}
        cells = {"ranks": placed_on(course.members) if course.members else f"waits for {course.needed}"}
        if course.revision:
            load = sum(course.loads.values()) / len(course.loads)
            cells["placement"] = f"{course.revision}, busiest {load:.2f}"
        return cells

    def node_cells(self, node: Node) -> Mapping[str, str]:
        """Return the number of ranks on the node."""
        ranks = sum(
            member.ranks for job in self._live.values() for member in job.members if member.node == node.node
        )
        return {"ranks": str(ranks)} if ranks else {}


def placed_on(members: tuple[RankMember, ...]) -> str:
    """Return a text about the number of a job's ranks and their nodes."""
    shown = ", ".join(f"{member.node} x{member.ranks}" for member in members[:_SHOWN_NODES])
    more = len(members) - _SHOWN_NODES
    total = counted(sum(member.ranks for member in members), "rank")
    return f"{total} on {shown}{f' and {more} more' if more > 0 else ''}"
