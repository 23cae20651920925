"""Events with the times at which they are sent: what a workload consists of."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from schemas.base import MAX_TIME_S, Event
from schemas.errors import ReadableError

E = TypeVar("E", bound=Event, covariant=True)


class WorkloadError(ReadableError):
    """A workload that cannot be drawn or run. The message is one line."""


@dataclass(frozen=True)
class TimedEvent(Generic[E]):
    """An event and when it is sent, in Unix seconds."""

    time_s: float
    event: E


def check_time(time_s: float) -> None:
    """Return if events may speak of this moment.

    Raises:
        WorkloadError: it is too late for them.
    """
    if time_s > MAX_TIME_S:
        raise WorkloadError("the workload reaches beyond the year 2100: begin earlier, or make it shorter")
