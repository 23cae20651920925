"""Timeline of a fine-tuning job."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from infra.figures.jobs import JobTimeline
from infra.figures.merging.merges import Merge
from schemas.merging.outcomes import JobForetold, MergeEvaluated, TaskChanged
from schemas.merging.workload import TuningWorkload
from solvers.merging.fairness import Finished


class PresentProfileRun(NamedTuple):
    """A profile run that is not over."""

    node: str
    gpus: int
    since_s: float


@dataclass(eq=False)
class TuningTimeline(JobTimeline):
    """A job, its tasks and its last merge."""

    task: TaskChanged | None = None
    """Its task with GPUs; in a temporal merge, the receiver's too."""
    profile_run: PresentProfileRun | None = None
    accuracy: float | None = None
    """Best accuracy of its training, without that in an undone merge."""
    preemptions: int = 0
    forecast: JobForetold | None = None
    """Latest forecast."""
    step_s: dict[int, float] = field(default_factory=dict)
    """Step time by number of GPUs, ascending, from the zone's problems."""
    merge: Merge | None = None
    """Its last merge."""

    @property
    def workload(self) -> TuningWorkload | None:
        """Its work; None if it was rejected for another kind of work."""
        workload = None if self.submission is None else self.submission.workload
        return workload if isinstance(workload, TuningWorkload) else None

    @property
    def is_training(self) -> bool:
        """Whether it is trained now: the receiver of a temporal merge waits for its donor."""
        return self.task is not None and self.job_id in active(self.task)

    @property
    def iterations(self) -> int:
        """Number of its iterations; 0 before it is completed."""
        if self.completed is None or self.workload is None:
            return 0
        return self.completed.samples_done // self.workload.hyperparameters.batch_size

    @property
    def mode(self) -> str:
        """Mode of its training: `normal`, or the mode of a merge that was not undone for it."""
        return self.merge.mode if self.merge is not None and self.merge.holds_for(self.job_id) else "normal"

    @property
    def evaluated(self) -> MergeEvaluated | None:
        """Verdict on its merge; None also for a donor, which trains as if it were alone."""
        return None if self.merge is None else self.merge.evaluated.get(self.job_id)

    def counts(self) -> Counter[str]:
        """Return the number of preemptions."""
        return Counter(preemptions=self.preemptions)

    def change(self, time_s: float, change: TaskChanged, merge: Merge | None) -> None:
        """Apply a change of its task, which begins `merge` if not None."""
        self.merge = merge or self.merge
        if self.job_id not in active(change):
            return
        self.preemptions += change.reason == "preempted"
        if change.gpus:
            self.started_s = time_s if self.started_s is None else self.started_s
            self.run(time_s)

    def finished(self) -> Finished | None:
        """Return its input of finish-time fairness: relative to all of its work, alone; None if it is not
        completed, or never was in a problem."""
        if self.completed is None or self.ended_s is None or not self.step_s or self.workload is None:
            return None
        evaluated = self.evaluated
        alone = max(self.iterations if evaluated is None else evaluated.iterations_alone, 1)
        return Finished(
            self.job_id,
            self.submitted_s,
            self.ended_s,
            self.workload.gpus,
            {gpus: alone * step_s for gpus, step_s in self.step_s.items()},
        )

    def as_row(self, workload: TuningWorkload, fairness: float | None) -> dict[str, Any]:
        """Return plain values, for a file."""
        merge, evaluated = self.merge, self.evaluated
        is_merged = merge is not None and merge.holds_for(self.job_id)
        return {
            "job_id": self.job_id,
            "user": self.user,
            "dataset": workload.dataset.path,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "state": self.state,
            "jct_s": self.jct_s,
            "asked_gpus": workload.gpus,
            "sharing": workload.sharing,
            "pipeline": workload.pipeline,
            "mode": self.mode,
            "partner": merge.partner_of(self.job_id) if merge is not None and is_merged else None,
            "was_undone": merge is not None and merge.is_undone_for(self.job_id),
            "preemptions": self.preemptions,
            "foretold_iterations": None if self.forecast is None else self.forecast.iterations,
            "iterations": self.iterations,
            "saved_s": None if evaluated is None else evaluated.saved_s,
            "finish_time_fairness": fairness,
        }


def active(task: TaskChanged) -> tuple[str, ...]:
    """Return the jobs of a task that are trained now."""
    return task.job_ids[:1] if task.mode == "temporal" else task.job_ids
