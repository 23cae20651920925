"""Events of the `clock` topic, the only way in which time reaches a cell; and their interval."""

import math
from typing import ClassVar

from schemas.base import Event, UnixTime
from schemas.cells import CellConfigured

_TICKS_PER_SLOT = 5
_LONGEST_INTERVAL_S = 10.0


class ClockTicked(Event):
    """The time is now `time_s`. A tick earlier than one already seen is ignored."""

    TYPE: ClassVar = "millrace.clock.ticked.v1"

    time_s: UnixTime


def tick_interval_s(cell: CellConfigured) -> float:
    """Seconds between two ticks: some per slot."""
    return min(cell.slot_s / _TICKS_PER_SLOT, _LONGEST_INTERVAL_S)


def next_tick_s(cell: CellConfigured, interval_s: float, now_s: float) -> float:
    """The next tick after `now_s`, on a grid through the cell's epoch: a slot opens with its first second."""
    return cell.epoch_s + (math.floor((now_s - cell.epoch_s) / interval_s) + 1) * interval_s
