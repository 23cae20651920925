"""The decisions of a merging zone, and the numbers behind them."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, Record
from schemas.facts import Facts
from schemas.kind import Evidence
from schemas.merging.commands import TaskMember, TransferMode

TaskChangeReason = Literal[
    "started",
    "resumed",
    "reallocated",
    "merged",
    "separated",
    "undone",
    "preempted",
    "node_lost",
    "run_failed",
    "job_over",
    "withdrawn",
]
"""Reason of a change. `started`, `resumed`: from waiting. `reallocated`: the task has other GPUs. `merged`:
two separate jobs are one task. `separated`: the plan separates the jobs of a merge whose receiver has not
begun. `undone`: a merge brings a job no gain, or has kept it from its target. `preempted`: other tasks have
its GPUs. `job_over`: one of two jobs is complete or withdrawn, and the other continues."""


ForecastReason = Literal[
    "profiled", "estimated", "kind_known", "kind_finished", "unusable_profile", "profile_failed"
]


class QueuedTask(Evidence):
    """A new job is queued."""

    kind: Literal["queued_task"] = "queued_task"
    jobs_waiting: Amount
    """Number of other waiting jobs."""
    is_profiled: bool
    """Whether a job with equal data and hyperparameters was profiled before, so that it needs no profile
    run."""


class JobForetold(Outcome):
    """Forecast for a job, by its profile run or by jobs of its kind that are over; repeated after a solver
    has analysed the profile."""

    TYPE: ClassVar = "millrace.job.foretold.v1"

    zone: Identifier
    job_id: Identifier
    reason: ForecastReason
    """Source of the forecast. `profiled`: no solver has analysed the profile yet, and the job is assumed to
    need all its allowed iterations. `estimated`: a solver has, and compares the iterations of its kind, or
    else of others, until their targets. `unusable_profile`: the profile is refused for the reason in `facts`,
    and the job runs unmerged; likewise `profile_failed`."""
    iterations: Amount
    """Iterations until its target (K_i), of those allowed."""
    step_s: float
    """Duration of a step with one GPU, or with one pipeline."""
    loader_s: float
    memory_gib: float
    facts: Facts = Field(default_factory=dict)


class MergeForecast(Record):
    """Forecast of a merge for one of its jobs."""

    job_id: Identifier
    partner: Identifier
    gain: float
    """Gain of its accuracy (G, Eq. 1)."""
    iterations: Amount
    """Iterations that it is expected to need in the merge."""
    iterations_alone: Amount


class TaskChanged(Outcome):
    """A task gets other jobs or GPUs. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.task.changed.v1"

    zone: Identifier
    task_id: Identifier
    generation: Amount
    mode: TransferMode
    job_ids: tuple[Identifier, ...]
    """Jobs of the task, the donor of a temporal merge first. Empty if the task is over."""
    reason: TaskChangeReason
    gpus_before: Amount
    gpus: Amount
    members: tuple[TaskMember, ...]
    remaining_s: float
    """Time of its remaining work with these GPUs, as forecast; 0 without GPUs."""
    foretold: tuple[MergeForecast, ...] = ()
    """Forecasts of a new merge."""
    facts: Facts = Field(default_factory=dict)


class MergeEvaluated(Outcome):
    """Result of a merge for one of its jobs."""

    TYPE: ClassVar = "millrace.merge.evaluated.v1"

    zone: Identifier
    job_id: Identifier
    partner: Identifier
    mode: Literal["temporal", "spatial"]
    reason: Literal["finished", "undone", "ended_early"]
    """Reason of the result. `ended_early`: the job was withdrawn or failed."""
    foretold_gain: float
    gain: float | None
    """Gain of its accuracy over jobs of its kind that ran alone for as many epochs; None without any."""
    foretold_iterations: Amount
    iterations: Amount
    """Iterations that it took."""
    iterations_alone: Amount
    """Iterations that it would have needed alone, as measured with jobs of its kind or, without any, as
    forecast."""
    saved_s: float
    """Saving by the merge, in time with one GPU; negative where it cost some."""


class PlanDecided(Outcome):
    """Result of a request to a solver for an allocation. The changes of tasks before it carry it out."""

    TYPE: ClassVar = "millrace.plan.decided.v1"

    zone: Identifier
    reason: Literal["applied", "kept_last", "out_of_date"]
    """Use of the result. `kept_last`: the solver found no plan in time, and the last one stays.
    `out_of_date`: no part of it fits any more."""
    request_id: Identifier
    objective: float | None
    """Sum of slowdowns; None without a plan, or if the scheme has no such objective."""
    bound: float | None
    """Lower bound of the objective over all plans."""
    jobs: Amount
    """Number of jobs that get GPUs."""
    dropped: Amount
    """Number of shares of the plan that cannot be assigned any more."""
    solve_s: float
