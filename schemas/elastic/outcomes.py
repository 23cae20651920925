"""The decisions of an elastic zone, and the numbers behind them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, Samples, is_none
from schemas.elastic.commands import Member
from schemas.facts import Facts
from schemas.kind import Evidence


def is_declared(speed_from: str) -> bool:
    """Return whether a speed is the one that the user declares."""
    return speed_from == "declared"


ServerPool = Literal["training", "loaned"]
"""Pool of servers: the zone's own, or those on loan from another zone."""

SpeedFrom = Literal["declared", "measured", "offline", "assumed"]
"""Source of a job's expected speed. `measured`: steps of runs of its kind on the zone's nodes; `offline`:
published profiles; `declared`: by its user; `assumed`: without any of these, it is expected to run for the
zone's `assumed_running_s`."""
DurationErrorPercent = Annotated[float | None, Field(ge=0)]
"""Expected error of a running time. Before the job runs, it is that of the curve through measured steps.
While it runs, it is a fading mean of the deviations of its speed from the expected speed. None where nothing
was measured."""

ResizeReason = Literal[
    "started",
    "resumed",
    "scaled_out",
    "scaled_in",
    "moved",
    "servers_reclaimed",
    "preempted",
    "node_lost",
    "run_failed",
    "gave_way",
    "stopped",
]
"""Reason of a change. `started`, `resumed`: from the queue, for the first time or again. `scaled_out`,
`scaled_in`, `moved`: by a round of allocation, to more, fewer or as many workers. `servers_reclaimed`: the
job continues without its workers on reclaimed servers. `preempted`: reclaimed servers leave it too few
workers, so it returns to the queue; likewise after the loss of a node or a failed run. `gave_way`: it started
before others by an expected speed that it does not reach, and waits again. `stopped`: its user withdraws it
or its work is done, and its remaining workers must end."""


class JobResized(Outcome):
    """A job gets other workers than before, or none. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.job.resized.v1"

    zone: Identifier
    job_id: Identifier
    generation: Amount
    """Generation of its workers; the last one if it has none now."""
    reason: ResizeReason
    workers_before: Amount
    workers: Amount
    """Number of workers, as on training servers; 0 while it waits."""
    pool: ServerPool | None
    """Pool of its base demand; None while it waits."""
    flexible_pool: ServerPool | None
    """Pool of the workers beyond the base demand; None without any."""
    servers: tuple[Member, ...]
    """Actual workers on each server. On slower GPUs, there are more."""
    remaining_s: float
    """Time of the job's remaining work with these workers; with the base demand while it waits."""
    samples_done: Samples
    facts: Facts = Field(default_factory=dict)
    """Cause of the change: the jobs for which it was preempted, or the node that went down."""


class QueuedJob(Evidence):
    """Place of a job in the queue."""

    kind: Literal["queued_job"] = "queued_job"
    jobs_waiting: Amount
    """Number of other waiting jobs."""
    running_s: float
    """Duration with all the workers that it can use."""
    # Omitted if they are the defaults, so that decisions of jobs with declared speeds keep their bytes.
    speed_from: Annotated[SpeedFrom, Field(exclude_if=is_declared)] = "declared"
    duration_error_pct: Annotated[DurationErrorPercent, Field(exclude_if=is_none)] = None


class ElasticForecast(Evidence):
    """Forecast of a job's start and end without further submissions, loans and reclaims."""

    kind: Literal["elastic_forecast"] = "elastic_forecast"
    jobs_waiting: Amount
    """Number of waiting jobs; shorter ones are before it."""
    start_s: float
    """Start, in Unix seconds."""
    earliest_end_s: float
    """End, if it has all the workers that it can use from its start on."""
    latest_end_s: float
    """End with its base demand alone."""
    speed_from: Annotated[SpeedFrom, Field(exclude_if=is_declared)] = "declared"
    duration_error_pct: Annotated[DurationErrorPercent, Field(exclude_if=is_none)] = None
    """Expected error of its running time; that of its start is not included."""


class JobProfiled(Outcome):
    """A job's workers have reported the first measured steps of their generation, so its running time is
    forecast again."""

    TYPE: ClassVar = "millrace.job.profiled.v1"

    zone: Identifier
    job_id: Identifier
    generation: Amount
    workers: Amount
    samples_per_s: float
    """Measured speed of these workers together."""
    expected_samples_per_s: float
    """Speed that was expected of them."""
    expected_from: SpeedFrom
    """Source of the expected speed."""
    remaining_s: float
    """Time of the job's remaining work with these workers, as expected now."""
    duration_error_pct: DurationErrorPercent
    """Expected error of `remaining_s`."""
    profile_gpu_s: float
    """GPU time of these workers until then if they ran only to be profiled, with the base demand; else 0."""


class ServersCleared(Outcome):
    """Losses of jobs with workers on servers that are returned. Idle servers are returned without this."""

    TYPE: ClassVar = "millrace.servers.cleared.v1"

    zone: Identifier
    servers: tuple[Identifier, ...]
    """Servers that had workers."""
    by_s: float | None
    """Time by which the first of them must be back; None without a deadline."""
    preempted: tuple[Identifier, ...]
    """Jobs that return to the queue."""
    scaled_in: tuple[Identifier, ...]
    """Jobs that continue without their workers there."""
    preempting_servers: Amount
    """Number of servers with preempted jobs; no job loses its base demand on the others."""
    collateral_gpus: Amount
    """GPUs that preempted jobs leave idle on other servers (section 3.7.3)."""
    spared_jobs: Amount
    """Jobs that have workers on other loaned servers and lose none."""
