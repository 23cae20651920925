"""State of an elastic zone: jobs with workers, jobs that wait, and jobs that a reclaim would preempt."""

from typing import ClassVar

from schemas.base import Amount, Identifier, Record, ZoneView


class PoolGpus(Record):
    """The GPUs of a pool of servers, real ones."""

    gpus: Amount
    used_gpus: Amount
    """Those that workers are placed on."""


class WaitingJob(Record):
    """A job in the queue."""

    job_id: Identifier
    base_gpus: Amount
    """GPUs that it starts with, on training servers."""
    running_s: float
    """Time of its remaining work with all the workers that it can use."""


class ReclaimEffect(Record):
    """Effect of a reclaim of a number of servers now."""

    servers: Amount
    """Number of servers, of which the others preempt no job."""
    preempting: tuple[Identifier, ...]
    """Those of them that have workers of jobs which would be preempted."""
    preempts: tuple[Identifier, ...]
    """Jobs that would be put back into the queue."""


class TurnGiven(Record):
    """A job that comes before all that have no turn, until it starts."""

    job_id: Identifier
    servers: Amount
    """Number of servers held for it: only jobs that are over by `by_s` start there."""
    held: tuple[Identifier, ...]
    """The first of them."""
    by_s: float
    """When they should have room for it, as jobs were declared."""


class ZoneStaffed(ZoneView):
    """Jobs of an elastic zone and their servers, the next job, and what a reclaim would take."""

    TYPE: ClassVar = "millrace.zone.staffed.v1"
    VIEW: ClassVar = "staffing"

    jobs_waiting: Amount
    jobs_running: Amount
    workers: Amount
    """Workers of all jobs, each counted as one on a training server."""
    training: PoolGpus
    loaned: PoolGpus
    """GPUs of servers on loan, and of the zone's own that are slower than the reference GPU."""
    queue: tuple[WaitingJob, ...]
    """The first of the waiting jobs, in the order of two-phase allocation: jobs that have a turn, then
    those of the shortest running times (section 3.5.2)."""
    turns: tuple[TurnGiven, ...] = ()
    """The jobs that have waited for too long and come before shorter ones, the first of them first."""
    on_loan: Amount
    """Servers on loan to the zone that nobody wants back yet."""
    harmless_returns: Amount
    """Number of them that could go without a preemption."""
    next_reclaims: tuple[ReclaimEffect, ...]
    """Effects of the next larger reclaims, if they came now."""
