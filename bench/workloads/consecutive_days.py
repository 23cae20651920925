"""Days of one cell, one after the other in the same ledger."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.workloads.paper import PaperSetting, draw
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import Task
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted

DAY_S = 86_400.0

SeededSetting = tuple[PaperSetting, int]
"""What to draw a day of: a setting and a seed."""


@dataclass(frozen=True)
class ConsecutiveDays:
    """What a cell is asked on a day and on those before it."""

    cell: CellConfigured
    """That of the last day."""
    inputs: list[TimedEvent[Event]]
    earlier_job_ids: frozenset[str]
    """Of all days but the last."""


def draw_days(earlier: Sequence[SeededSetting], day: SeededSetting) -> ConsecutiveDays:
    """A day, and others before it; all of as many slots.

    Quotes and bids of each day are those that it has alone, later by whole calendar days, so that every hour
    has its tariff. Its quotes are of the same vendors, and replace those of the day before. No deadline of a
    day is after its last slot, so nothing of it is left to do when the next begins. Jobs of the day before
    the last have ids that begin with `before-`, those of the one before that with `before-2-`, and so on;
    those of the last are what they are alone.

    Raises:
        TraceError: a trace cannot be read, or is too short.
    """
    cell, last = draw(*day)
    day_s = DAY_S * math.ceil(day[0].slots * cell.slot_s / DAY_S)
    inputs: list[TimedEvent[Event]] = []
    job_ids = set()
    for number, before in enumerate(earlier):
        to_last = len(earlier) - number
        name = "before" if to_last == 1 else f"before-{to_last}"
        _, workload = draw(*before)
        inputs += (TimedEvent(cell.epoch_s + number * day_s, quote) for quote in workload.quotes)
        jobs = [_moved(timed, f"{name}-{timed.event.job_id}", number * day_s) for timed in workload.jobs]
        inputs += jobs
        job_ids |= {timed.event.job_id for timed in jobs}
    later_s = len(earlier) * day_s
    inputs += (TimedEvent(cell.epoch_s + later_s, quote) for quote in last.quotes)
    inputs += (_moved(timed, timed.event.job_id, later_s) for timed in last.jobs)
    return ConsecutiveDays(cell, inputs, frozenset(job_ids))


def _moved(timed: TimedEvent[JobSubmitted], job_id: str, later_s: float) -> TimedEvent[JobSubmitted]:
    """A bid under another id, it and its deadline so much later."""
    bid = timed.event
    terms = bid.terms.model_copy(update={"deadline_s": Task.of(bid).deadline_s + later_s})
    return TimedEvent(timed.time_s + later_s, bid.model_copy(update={"job_id": job_id, "terms": terms}))
