"""Merges of jobs, folded from a cell's decisions."""

from dataclasses import dataclass, field
from typing import Self

from schemas.merging.estimates import MergeMode
from schemas.merging.outcomes import MergeEvaluated, MergeForecast, TaskChanged


@dataclass
class Merge:
    """Two jobs that were put into one task."""

    mode: MergeMode
    jobs: tuple[str, str]
    """Ids of the jobs; in a temporal merge, the donor is first."""
    forecasts: dict[str, MergeForecast] = field(default_factory=dict)
    """Forecasts by job."""
    evaluated: dict[str, MergeEvaluated] = field(default_factory=dict)
    """Results by job; in a temporal merge, only the receiver has one."""
    has_begun: bool = False
    """Whether both jobs are affected: in a temporal merge, the receiver trains from its donor's weights."""
    is_dissolved: bool = False
    """Whether a later plan separated the jobs before the receiver of a temporal merge started."""

    @property
    def is_undone(self) -> bool:
        """Whether the merge was undone for one of its jobs at least."""
        return any(record.reason == "undone" for record in self.evaluated.values())

    @classmethod
    def of(cls, change: TaskChanged) -> Self | None:
        """Return the merge that a change of a task begins; None if it begins none."""
        match change:
            case TaskChanged(reason="merged", mode="temporal" | "spatial" as mode, job_ids=(first, second)):
                forecasts = {each.job_id: each for each in change.foretold}
                return cls(mode, (first, second), forecasts, has_begun=mode == "spatial")
        return None

    def change(self, change: TaskChanged) -> None:
        """Apply a later change of the task of one of its jobs."""
        if change.reason == "undone":
            return  # the next decisions name the jobs that it is undone for
        if change.reason == "job_over" and change.mode == "temporal":
            self.has_begun = True
        elif not self.has_begun and (len(change.job_ids) < len(self.jobs) or not change.gpus):
            self.is_dissolved = True

    def is_undone_for(self, job_id: str) -> bool:
        """Return whether a job was to start again. In a spatial merge, one job may be, and the other keeps
        its weights; in a temporal merge, the receiver's result holds for its donor too."""
        record = self.evaluated.get(job_id if self.mode == "spatial" else self.jobs[1])
        return record is not None and record.reason == "undone"

    def holds_for(self, job_id: str) -> bool:
        """Return whether a job is, or was to its end, merged."""
        return not (self.is_undone_for(job_id) or self.is_dissolved)

    def partner_of(self, job_id: str) -> str:
        """Return the other job."""
        first, second = self.jobs
        return second if job_id == first else first
