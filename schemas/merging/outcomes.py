"""The decisions of a merging zone, and the numbers behind them."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, Record, ZoneView
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
"""`started`, `resumed`: from waiting. `reallocated`: it has other GPUs. `merged`: two jobs that were apart
are one task. `separated`: the plan has its jobs apart again, of a merge whose receiver has not begun.
`undone`: a merge brings a job no gain, or has kept it from its target. `preempted`: others have its GPUs.
`job_over`: one of two is done or withdrawn, and the other goes on."""


ForetoldReason = Literal[
    "profiled", "estimated", "kind_known", "kind_finished", "unusable_profile", "profile_failed"
]


class QueuedTask(Evidence):
    """A new job is queued."""

    kind: Literal["queued_task"] = "queued_task"
    jobs_waiting: Amount
    """Number of jobs that wait beside it."""
    is_profiled: bool
    """Whether a job of equal data and hyperparameters was profiled before: then it needs no profile run."""


class JobForetold(Outcome):
    """Forecast for a job, from its profile run or from jobs of its kind that are over; repeated when
    a solver has looked at the profile."""

    TYPE: ClassVar = "millrace.job.foretold.v1"

    zone: Identifier
    job_id: Identifier
    reason: ForetoldReason
    """`profiled`: no solver has looked at the profile yet, and it is taken to need all iterations that it may
    have. `estimated`: a solver has, and tells by what its kind, or else others, have needed until their
    targets. `unusable_profile`: it was refused for what `facts` name, and the job runs unmerged; likewise
    `profile_failed`."""
    iterations: Amount
    """Until its target (K_i), of all that it may have."""
    step_s: float
    """With one GPU, or with one pipeline."""
    loader_s: float
    memory_gib: float
    facts: Facts = Field(default_factory=dict)


class MergeForetold(Record):
    """Forecast of a merge for one of its jobs."""

    job_id: Identifier
    partner: Identifier
    gain: float
    """Gain of its accuracy (G, Eq. 1)."""
    iterations: Amount
    """That it is taken to need in the merge."""
    iterations_alone: Amount


class TaskChanged(Outcome):
    """A task has other jobs or GPUs than before. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.task.changed.v1"

    zone: Identifier
    task_id: Identifier
    generation: Amount
    mode: TransferMode
    job_ids: tuple[Identifier, ...]
    """Jobs of the task, the donor of a temporal merge first. Empty where nothing is left of it."""
    reason: TaskChangeReason
    gpus_before: Amount
    gpus: Amount
    members: tuple[TaskMember, ...]
    remaining_s: float
    """Time of its remaining work with these GPUs, as forecast; 0 where it has none."""
    foretold: tuple[MergeForetold, ...] = ()
    """Forecasts of a new merge."""
    facts: Facts = Field(default_factory=dict)


class MergeJudged(Outcome):
    """Result of a merge for one of its jobs."""

    TYPE: ClassVar = "millrace.merge.judged.v1"

    zone: Identifier
    job_id: Identifier
    partner: Identifier
    mode: Literal["temporal", "spatial"]
    reason: Literal["finished", "undone", "ended_early"]
    """`ended_early`: withdrawn or failed."""
    foretold_gain: float
    gain: float | None
    """Gain of its accuracy over that of jobs of its kind that ran alone; None where none has."""
    foretold_iterations: Amount
    iterations: Amount
    """That it took, or had taken."""
    iterations_alone: Amount
    """Iterations that it would have needed alone, as measured by jobs of its kind or, without any, as
    forecast."""
    saved_s: float
    """Saving by the merge, in time with one GPU; negative where it cost some."""


class PlanDecided(Outcome):
    """Result of a request to a solver for an allocation. The changes of tasks that follow carry it out."""

    TYPE: ClassVar = "millrace.plan.decided.v1"

    zone: Identifier
    reason: Literal["applied", "kept_last", "out_of_date"]
    """`kept_last`: the solver has found nothing in time, and things stay as they are. `out_of_date`: nothing
    of it fits any more."""
    request_id: Identifier
    objective: float | None
    """Sum of slowdowns; None where there is none, or the scheme has no such objective."""
    bound: float | None
    """No plan has less."""
    jobs: Amount
    """That GPUs were given to."""
    dropped: Amount
    """Shares that the plan has and that cannot be given any more."""
    solve_s: float


class ForetellingErrors(Record):
    """Errors of forecasts (the columns of Table 2); None where there is no result yet."""

    gain_pearson: float | None = None
    gain_mape_pct: float | None = None
    gain_sign_pct: float | None = None
    iterations_mean_pct: float | None = None
    iterations_max_pct: float | None = None
    transfer_iterations_mean_pct: float | None = None
    transfer_iterations_max_pct: float | None = None


class ZoneMerged(ZoneView):
    """State of a merging zone."""

    TYPE: ClassVar = "millrace.zone.merged.v1"
    VIEW: ClassVar = "merging"

    jobs_waiting: Amount
    jobs_profiling: Amount
    jobs_running: Amount
    gpus: Amount
    used_gpus: Amount
    temporal_merges: Amount
    spatial_merges: Amount
    merges_finished: Amount
    merges_undone: Amount
    saved_s: float
    """Saving by all merges that are over, in time with one GPU."""
    errors: ForetellingErrors
