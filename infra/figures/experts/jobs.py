"""Timeline of a job that trains or serves a mixture-of-experts model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.figures.jobs import JobTimeline
from schemas.experts.commands import RankMember
from schemas.experts.outcomes import PlacementDecided, RanksChanged
from schemas.experts.reports import ExpertsRouted, RoutingReport
from schemas.experts.workload import MoeServeWorkload


@dataclass(eq=False)
class MoeTimeline(JobTimeline):
    """A job, its ranks and its placements."""

    members: tuple[RankMember, ...] = ()
    """Its ranks, the leader's first; empty without ranks."""
    generations: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    """Changes of its ranks by reason."""
    batches: int = 0
    """Batches that were served after the profile stage."""
    interval_s: float = 0.0
    """Time in which they were served."""
    tokens: int = 0
    """Reported tokens over all layers."""
    placements: Counter[str] = field(default_factory=Counter)
    """Decided placements by reason."""
    revision: int = 0
    """Revision of the present placement; 0 before the first."""
    devices: dict[int, Sequence[Sequence[int]]] = field(default_factory=dict)
    """Experts on each device, by layer."""
    loads: dict[int, float] = field(default_factory=dict)
    """Load of the busiest device divided by the mean, by layer. It is decided with the placement, and later
    computed from the latest report, as if the devices of an expert had equal shares of its tokens."""

    def counts(self) -> Counter[str]:
        """Return the numbers of changes of its ranks, and of its placements, by reason."""
        return self.changes + self.placements

    @property
    def gave_way(self) -> int:
        """Number of times that its ranks were assigned to another user's job that had waited for too long."""
        return self.changes["gave_way"]

    @property
    def is_service(self) -> bool:
        """Whether it serves a model."""
        return self.submission is not None and isinstance(self.submission.workload, MoeServeWorkload)

    @property
    def ranks(self) -> int:
        """Number of ranks that it needs at once."""
        return 0 if self.submission is None else getattr(self.submission.workload, "ranks", 0)

    @property
    def busiest_load(self) -> float | None:
        """Load of the busiest device over the mean, averaged over layers; None before the first placement."""
        return sum(self.loads.values()) / len(self.loads) if self.loads else None

    def change(self, time_s: float, change: RanksChanged) -> None:
        """Apply a change of its ranks."""
        self.members = change.members
        if change.members:
            self.generations = change.generation
            self.started_s = time_s if self.started_s is None else self.started_s
            self.run(time_s)
        elif change.reason not in ("withdrawn", "ended"):
            self.wait(time_s)
        self.changes[change.reason] += 1

    def place(self, decision: PlacementDecided) -> None:
        """Apply a placement."""
        self.placements[decision.reason] += 1
        self.revision = decision.revision
        for layer in decision.layers:
            self.devices[layer.placement.layer] = layer.placement.devices
            self.loads[layer.placement.layer] = layer.load

    def report(self, report: RoutingReport) -> None:
        """Apply a report on routed tokens; a zone uses only those of the leader."""
        if isinstance(report, ExpertsRouted):
            self.batches += report.batches
            self.interval_s += report.interval_s
        if not self.members or report.node != self.members[0].node:
            return
        for number, layer in enumerate(report.layers):
            self.tokens += sum(layer.tokens)
            if (load := _busiest_load(self.devices.get(number, ()), layer.tokens)) is not None:
                self.loads[number] = load

    def as_row(self) -> dict[str, Any]:
        """Return plain values, for a file."""
        return {
            "job_id": self.job_id,
            "user": self.user,
            "kind": "moe-serve" if self.is_service else "moe-train",
            "ranks": self.ranks,
            "state": self.state,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "generations": self.generations,
            "gave_way": self.gave_way,
            "batch_s": self.interval_s / self.batches if self.batches else None,
            "placements": self.placements.total(),
        }


def _busiest_load(devices: Sequence[Sequence[int]], tokens: Sequence[int]) -> float | None:
    """Return the load of the busiest device over the mean; None without tokens on a known placement."""
    replicas = Counter(expert for device in devices for expert in device)
    if not sum(tokens) or any(expert >= len(tokens) for expert in replicas):
        return None
    loads = [sum(tokens[expert] / replicas[expert] for expert in device) for device in devices]
    return max(loads) * len(loads) / total if (total := sum(loads)) else None
