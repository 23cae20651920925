"""What the measures of an elastic zone come to, in the thesis' terms (section 3.7)."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from infra.simulation.distribution import Distribution


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
