"""The decisions of an elastic zone, and the numbers behind them."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Amount, Identifier, Outcome, Samples
from schemas.elastic.commands import Member
from schemas.facts import Facts
from schemas.kind import Evidence

ServerPool = Literal["training", "loaned"]
"""The zone's own servers, or those that another zone lends and may reclaim."""

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
    "stopped",
]
"""`started`, `resumed`: from the queue, with a first set of workers or after it was put back. `scaled_out`,
`scaled_in`, `moved`: by a round of allocation, to more, fewer or as many workers. `servers_reclaimed`: it
goes on without the workers on servers that are wanted back. `preempted`: the same servers leave it too few,
so it is put back into the queue; likewise with a lost node or a failed run. `stopped`: its user withdraws it
or its work is done, and workers remain that must go."""


class JobResized(Outcome):
    """A job has other workers than before, or none. The commands that follow carry it out."""

    TYPE: ClassVar = "millrace.job.resized.v1"

    zone: Identifier
    job_id: Identifier
    generation: Amount
    """Generation of its workers; of the last ones where it has none now."""
    reason: ResizeReason
    workers_before: Amount
    workers: Amount
    """Each counted as one on a training server; 0 while it waits."""
    pool: ServerPool | None
    """Where its base demand is; None while it waits."""
    flexible_pool: ServerPool | None
    """Where the workers beyond it are; None where there are none."""
    servers: tuple[Member, ...]
    """Real workers on each server, which are more on slower GPUs."""
    remaining_s: float
    """Time of the job's remaining work with these workers; with the base demand while it waits."""
    samples_done: Samples
    facts: Facts = Field(default_factory=dict)
    """Cause of the change: the jobs that it made way for, or the node that was lost."""


class QueuedJob(Evidence):
    """Where a job is in the queue."""

    kind: Literal["queued_job"] = "queued_job"
    jobs_waiting: Amount
    """Number of jobs that wait beside it."""
    running_s: float
    """Time that it takes with all the workers that it can use."""


class ElasticForecast(Evidence):
    """When a job would start and end if nothing else were submitted, lent or reclaimed."""

    kind: Literal["elastic_forecast"] = "elastic_forecast"
    jobs_waiting: Amount
    """Number of jobs that wait, shorter ones before it."""
    start_s: float
    """Unix seconds."""
    earliest_end_s: float
    """With all the workers that it can use, from its start on."""
    latest_end_s: float
    """With its base demand alone."""


class ServersCleared(Outcome):
    """Losses of jobs that had workers on servers that are given back. Idle servers go back without."""

    TYPE: ClassVar = "millrace.servers.cleared.v1"

    zone: Identifier
    servers: tuple[Identifier, ...]
    """Those that had workers."""
    by_s: float | None
    """When the first of them must be back; None where nobody waits for them."""
    preempted: tuple[Identifier, ...]
    """Jobs that are put back into the queue."""
    scaled_in: tuple[Identifier, ...]
    """Jobs that go on without their workers there."""
    preempting_servers: Amount
    """Number of the servers that a preempted job was on; the others cost no job its base demand."""
    collateral_gpus: Amount
    """GPUs that preempted jobs leave idle on other servers (section 3.7.3)."""
    spared_jobs: Amount
    """Jobs that have workers on other loaned servers and lose none."""
