"""State of an elastic zone: its queue, and the jobs that a reclaim would preempt."""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Amount, Identifier, Record, ZoneView, is_none
from schemas.elastic.outcomes import DurationErrorPercent


class WaitingJob(Record):
    """A job in the queue."""

    job_id: Identifier
    base_gpus: Amount
    """GPUs of its base demand, on training servers."""
    running_s: float
    """Time of its remaining work with all the workers that it can use."""
    # Omitted if it is the default, so that views of jobs that were never measured keep their bytes.
    duration_error_pct: Annotated[DurationErrorPercent, Field(exclude_if=is_none)] = None


class ReclaimEffect(Record):
    """Effect of a reclaim of a number of servers now."""

    servers: Amount
    """Number of reclaimed servers."""
    preempting: tuple[Identifier, ...]
    """Servers of these with workers of preempted jobs."""
    preempts: tuple[Identifier, ...]
    """Jobs that would return to the queue."""


class TurnGiven(Record):
    """A job that precedes all jobs without a turn, until it starts."""

    job_id: Identifier
    servers: Amount
    """Number of servers held for it: only jobs that are over by `by_s` start there."""
    held: tuple[Identifier, ...]
    """First of these servers."""
    by_s: float
    """Time at which they should have room for it, by the expected running times of jobs."""
    duration_error_pct: Annotated[DurationErrorPercent, Field(exclude_if=is_none)] = None
    """Largest expected error of the running times of the jobs on these servers; None if that of one is
    unknown."""


class ZoneStaffed(ZoneView):
    """Queue of an elastic zone, and the effects of reclaims. No view can fold them from
    other decisions: they follow from the zone's forecasts, its reserved room and a search over servers."""

    TYPE: ClassVar = "millrace.zone.staffed.v1"
    VIEW: ClassVar = "staffing"

    queue: tuple[WaitingJob, ...]
    """First waiting jobs, in the order of two-phase allocation: jobs with a turn, then those of the shortest
    running times (section 3.5.2)."""
    turns: tuple[TurnGiven, ...] = ()
    """Jobs that have waited for too long and precede shorter ones, in their order."""
    on_loan: Amount
    """Number of servers on loan to the zone that are not reclaimed."""
    harmless_returns: Amount
    """Number of these that could be returned without a preemption."""
    next_reclaims: tuple[ReclaimEffect, ...]
    """Effects of the next larger reclaims at present."""
