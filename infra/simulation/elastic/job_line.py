"""Row of a file about one job of a simulation."""

from dataclasses import dataclass
from typing import Any

from schemas.elastic.outcomes import JobResized
from schemas.elastic.workload import ElasticWorkload


@dataclass(slots=True)
class ElasticJobRow:
    """A job from its submission to its end. Times are Unix seconds."""

    job_id: str
    user: str
    submitted_s: float
    gpus_per_worker: int
    min_workers: int
    max_workers: int
    fungible: bool
    heterogeneous: bool
    state: str = "waiting"
    started_s: float | None = None
    """Time at which the job first got workers."""
    ended_s: float | None = None
    """Time at which its work was done, or it was rejected, refunded or withdrawn."""
    queuing_s: float = 0.0
    """Time without workers, that after preemptions included."""
    preemptions: int = 0
    """Number of times that it lost its base demand to a reclaim."""
    resizes: int = 0
    """Number of changes of its workers while it ran."""
    was_on_loaned: bool = False
    waits_since_s: float | None = None

    @classmethod
    def of(cls, job_id: str, user: str, workload: ElasticWorkload, time_s: float) -> "ElasticJobRow":
        """Return the row of a job that is submitted at `time_s`."""
        return cls(
            job_id,
            user,
            time_s,
            workload.gpus_per_worker,
            workload.min_workers,
            workload.max_workers,
            workload.fungible,
            workload.heterogeneous,
        )

    @property
    def jct_s(self) -> float | None:
        """Job completion time, from submission to end."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s

    def resize(self, time_s: float, outcome: JobResized) -> None:
        """Apply a change of the job's workers."""
        if outcome.workers_before == 0 and self.waits_since_s is not None:
            self.queuing_s += time_s - self.waits_since_s
            self.waits_since_s = None
            self.started_s = time_s if self.started_s is None else self.started_s
        elif outcome.workers > 0:
            self.resizes += 1
        if outcome.workers == 0 and outcome.reason != "stopped":
            self.waits_since_s = time_s
            self.preemptions += outcome.reason == "preempted"

    def end(self, time_s: float, state: str) -> None:
        """End the job in `state`; if its work was done before, its end time stays."""
        self.state = state
        self.ended_s = time_s if self.ended_s is None else self.ended_s
        if self.waits_since_s is not None:
            self.queuing_s += time_s - self.waits_since_s
            self.waits_since_s = None

    def as_row(self) -> dict[str, Any]:
        """Return the columns of the row."""
        return {
            "job_id": self.job_id,
            "user": self.user,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "state": self.state,
            "queuing_s": self.queuing_s,
            "jct_s": self.jct_s,
            "gpus_per_worker": self.gpus_per_worker,
            "min_workers": self.min_workers,
            "max_workers": self.max_workers,
            "fungible": self.fungible,
            "heterogeneous": self.heterogeneous,
            "preemptions": self.preemptions,
            "resizes": self.resizes,
            "was_on_loaned": self.was_on_loaned,
        }
