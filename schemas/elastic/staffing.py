"""How an elastic zone is staffed: who has workers, who waits, and who would lose them to a reclaim."""

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
    """What it starts with, on training servers."""
    running_s: float
    """What is left of it takes so long with all the workers that it can use."""


class ReclaimEffect(Record):
    """What it would do to want so many servers back now."""

    servers: Amount
    """How many, of which the others preempt nobody."""
    preempting: tuple[Identifier, ...]
    """Those of them that have workers of jobs which would be preempted."""
    preempts: tuple[Identifier, ...]
    """Jobs that would be put back into the queue."""


class TurnGiven(Record):
    """A job that comes before all that have no turn, until it starts."""

    job_id: Identifier
    servers: Amount
    """So many are held for it: only what is over by `by_s` starts there."""
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
    """Of all jobs, each counted as one on a training server."""
    training: PoolGpus
    loaned: PoolGpus
    """Of servers on loan, and of the zone's own that are slower than the reference GPU."""
    queue: tuple[WaitingJob, ...]
    """The first of the waiting jobs, in the order of two-phase allocation: jobs that have a turn, then
    those of the shortest running times (section 3.5.2)."""
    turns: tuple[TurnGiven, ...] = ()
    """The jobs that have waited for too long and come before shorter ones, the first of them first."""
    on_loan: Amount
    """Servers on loan to the zone that nobody wants back yet."""
    harmless_returns: Amount
    """So many of them could go and no job be preempted."""
    next_reclaims: tuple[ReclaimEffect, ...]
    """What the next larger reclaims would do, if they came now."""
