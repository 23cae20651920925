"""Events of the `clock` topic: time reaches a cell only here."""

from typing import ClassVar

from schemas.base import Identifier, Record, UnixTime


class ClockTicked(Record):
    """It is `time_s` now. A tick earlier than one already seen is ignored."""

    TYPE: ClassVar = "millrace.clock.ticked.v1"

    cell: Identifier
    time_s: UnixTime
