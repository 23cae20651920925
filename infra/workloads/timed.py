"""Events of a workload with the times at which they are sent."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from schemas.base import MAX_TIME_S, Event
from schemas.errors import ReadableError

E = TypeVar("E", bound=Event, covariant=True)


class WorkloadError(ReadableError):
    """A workload that cannot be drawn or run. The message is one line."""


@dataclass(frozen=True)
class TimedEvent(Generic[E]):
    """An event and the time at which it is sent (Unix seconds)."""

    time_s: float
    event: E


def check_time(time_s: float) -> None:
    """Check that a time is valid for events.

    Raises:
        WorkloadError: the time is too late.
    """
    if time_s > MAX_TIME_S:
        raise WorkloadError("the workload reaches beyond the year 2100: begin earlier, or make it shorter")
