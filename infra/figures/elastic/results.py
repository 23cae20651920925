"""Results of an elastic zone in a simulation, in the thesis' terms (section 3.7)."""

from dataclasses import asdict, dataclass
from typing import Any

from infra.figures.distribution import Distribution


@dataclass(frozen=True)
class ElasticResults:
    """Results of one zone in one simulation."""

    jobs: int
    """Number of submitted jobs."""
    completed: int
    queuing: Distribution
    """Queuing times of completed jobs, those after preemptions included."""
    jct: Distribution
    """Completion times of completed jobs."""
    span_s: float
    """Time from the start to the last job or load, over which usage is measured."""
    training_usage: float
    """Part of the zone's own GPUs that jobs used."""
    overall_usage: float
    """Part of all GPUs, those of inference servers included, that jobs used or that served requests
    (Table 3.5, note 1)."""
    on_loan_usage: float
    """Part of the GPUs on loan that jobs used; 0 where there were none."""
    preemptions: int
    preemption_ratio: float
    """Preemptions over submitted jobs (Table 3.5, note 2)."""
    resizes: int
    """Number of times that running jobs got more, fewer or other workers."""
    reclaims: int
    """Number of reclaims."""
    reclaimed_servers: int
    flexible_servers: int
    """Reclaimed servers that were returned without a preemption."""
    collateral_damage: float
    """GPUs vacated beyond the reclaimed ones, over the reclaimed ones (section 3.7.3)."""
    overdue_reclaims: int
    """Reclaims that were not met in time."""
    running_time_error_pct: float
    """Median error of the expected running times of completed jobs; see `ElasticTimeline`."""
    profiled: int
    """Number of runs to measure a job of which nothing was known."""
    profile_cost_pct: float
    """GPU time of the mean of these runs over that of the mean job."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "queuing": self.queuing.as_json(), "jct": self.jct.as_json()}
