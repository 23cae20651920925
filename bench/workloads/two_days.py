"""Two days of one cell, one after the other in the same ledger."""

import math
from dataclasses import dataclass

from bench.workloads.paper import PaperSetting, draw
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import Task
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted

DAY_S = 86_400.0
_BEFORE = "before"
"""What the ids of the first day's jobs begin with; those of the second are what they are alone."""

SeededSetting = tuple[PaperSetting, int]
"""What to draw a day of: a setting and a seed."""


@dataclass(frozen=True)
class TwoDays:
    """What a cell is asked on two days."""

    cell: CellConfigured
    """That of the second day."""
    inputs: list[TimedEvent[Event]]
    first_job_ids: frozenset[str]
    """Of the first day's jobs."""


def draw_two_days(before: SeededSetting, day: SeededSetting) -> TwoDays:
    """A day, and another one after it.

    Quotes and bids of the second day are those that it has alone, later by whole calendar days, so that every
    hour has its tariff. Its quotes are of the same vendors, and replace those of the first. No deadline of
    the first day is after its last slot, so nothing of it is left to do when the second begins.

    Raises:
        TraceError: a trace cannot be read, or is too short.
    """
    setting, _ = before
    _, first = draw(*before)
    cell, second = draw(*day)
    later_s = DAY_S * math.ceil(setting.slots * cell.slot_s / DAY_S)
    first_jobs = [_moved(timed, f"{_BEFORE}-{timed.event.job_id}", 0.0) for timed in first.jobs]
    inputs: list[TimedEvent[Event]] = [
        *(TimedEvent(cell.epoch_s, quote) for quote in first.quotes),
        *first_jobs,
        *(TimedEvent(cell.epoch_s + later_s, quote) for quote in second.quotes),
        *(_moved(timed, timed.event.job_id, later_s) for timed in second.jobs),
    ]
    return TwoDays(cell, inputs, frozenset(timed.event.job_id for timed in first_jobs))


def _moved(timed: TimedEvent[JobSubmitted], job_id: str, later_s: float) -> TimedEvent[JobSubmitted]:
    """A bid under another id, it and its deadline so much later."""
    bid = timed.event
    terms = bid.terms.model_copy(update={"deadline_s": Task.of(bid).deadline_s + later_s})
    return TimedEvent(timed.time_s + later_s, bid.model_copy(update={"job_id": job_id, "terms": terms}))
