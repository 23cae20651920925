"""Events of the `clock` topic, the only way in which time reaches a cell; and their interval."""

import math
from typing import ClassVar

from schemas.base import Event, UnixTime
from schemas.cells import CellConfigured


class ClockTicked(Event):
    """The time is now `time_s`. A tick earlier than one already seen is ignored."""

    TYPE: ClassVar = "millrace.clock.ticked.v1"

    time_s: UnixTime


def tick_interval_s(cell: CellConfigured) -> float:
    """Seconds between two ticks: as often as any zone of the cell needs the time."""
    return min(zone.policy.tick_interval_s(cell.slot_s) for zone in cell.zones)


def next_tick_s(cell: CellConfigured, interval_s: float, now_s: float) -> float:
    """Return the time of the next tick after `now_s`, on a grid through the cell's epoch."""
    return cell.epoch_s + (math.floor((now_s - cell.epoch_s) / interval_s) + 1) * interval_s
