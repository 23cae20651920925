"""One job of a simulation, as a line of a file."""

from dataclasses import dataclass, field
from typing import Any

from infra.views.merging.merges import Merge
from schemas.decisions import JobCompleted
from schemas.merging.outcomes import JobForetold, MergeJudged
from schemas.merging.workload import TuningWorkload
from solvers.merging.fairness import Finished


@dataclass(slots=True)
class TuningJobLine:
    """A job from its submission to its end. Times are Unix seconds."""

    job_id: str
    user: str
    submitted_s: float
    workload: TuningWorkload
    state: str = "waiting"
    started_s: float | None = None
    """Time of its first GPUs, without its profile run."""
    ended_s: float | None = None
    """Time at which its work was done, or it was rejected, refunded or withdrawn."""
    preemptions: int = 0
    foretold: JobForetold | None = None
    """Latest forecast."""
    step_s: dict[int, float] = field(default_factory=dict)
    """Step time by number of GPUs, ascending, from the zone's problems."""
    merge: Merge | None = None
    """Its last merge."""
    iterations: int = 0
    """Number of its iterations."""

    @property
    def jct_s(self) -> float | None:
        """Job completion time: from submission to end."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s

    @property
    def mode(self) -> str:
        """Mode of its training: `normal`, or the mode of a merge that was not undone for it."""
        return self.merge.mode if self.merge is not None and self.merge.holds_for(self.job_id) else "normal"

    @property
    def judged(self) -> MergeJudged | None:
        """Verdict on its merge; None also for a donor, which trains as if it were alone."""
        return None if self.merge is None else self.merge.judged.get(self.job_id)

    @property
    def ran_alone(self) -> bool:
        """Whether it was trained from the base model, without another."""
        return self.judged is None

    def end(self, time_s: float, outcome: Any) -> None:
        """Record the end; its time is that of its last work, if that was done before."""
        self.state = outcome.STATE
        self.ended_s = time_s if self.ended_s is None else self.ended_s
        if isinstance(outcome, JobCompleted):
            self.iterations = outcome.samples_done // self.workload.hyperparameters.batch_size

    def finished(self) -> Finished | None:
        """Return its input of finish-time fairness: relative to all of its work, alone; None if it is not
        completed, or never was in a problem."""
        if self.state != "completed" or self.ended_s is None or not self.step_s:
            return None
        judged = self.judged
        alone = max(self.iterations if judged is None else judged.iterations_alone, 1)
        return Finished(
            self.job_id,
            self.submitted_s,
            self.ended_s,
            self.workload.gpus,
            {gpus: alone * step_s for gpus, step_s in self.step_s.items()},
        )

    def as_row(self, fairness: float | None) -> dict[str, Any]:
        """Return plain values, for a file."""
        merge, judged = self.merge, self.judged
        is_merged = merge is not None and merge.holds_for(self.job_id)
        return {
            "job_id": self.job_id,
            "user": self.user,
            "dataset": self.workload.dataset.path,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "state": self.state,
            "jct_s": self.jct_s,
            "asked_gpus": self.workload.gpus,
            "sharing": self.workload.sharing,
            "pipeline": self.workload.pipeline,
            "mode": self.mode,
            "partner": merge.partner_of(self.job_id) if merge is not None and is_merged else None,
            "was_undone": merge is not None and merge.is_undone_for(self.job_id),
            "preemptions": self.preemptions,
            "foretold_iterations": None if self.foretold is None else self.foretold.iterations,
            "iterations": self.iterations,
            "saved_s": None if judged is None else judged.saved_s,
            "finish_time_fairness": fairness,
        }
