"""Numbers of used GPUs, over time and by the hour."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields

HOUR_S = 3_600.0


@dataclass(slots=True)
class Integral:
    """Integral over time of an amount that is constant between changes."""

    since_s: float
    amount: float = 0.0
    total: float = 0.0

    def change(self, time_s: float, difference: float) -> None:
        """Add `difference` to the amount from this time on."""
        self.total += self.amount * (time_s - self.since_s)
        self.amount += difference
        self.since_s = time_s

    def until(self, time_s: float) -> float:
        """Return the integral up to a time that is not before the last change."""
        return self.total + self.amount * (time_s - self.since_s)


@dataclass(slots=True)
class GpuSeconds:
    """GPU seconds up to one time."""

    own: float = 0.0
    """GPU seconds of jobs on the zone's own servers."""
    on_loaned: float = 0.0
    """GPU seconds of jobs on servers of other zones."""
    loaned: float = 0.0
    """GPU seconds of borrowed servers, whether jobs use them or not."""
    serving: float = 0.0
    """GPU seconds that other zones' load uses on their servers."""

    def less(self, other: "GpuSeconds") -> "GpuSeconds":
        """Return the GPU seconds from the other time to this one."""
        return GpuSeconds(
            *(getattr(self, each.name) - getattr(other, each.name) for each in fields(GpuSeconds))
        )


class GpuUsage:
    """Integrates changes in the order of their times, and closes each hour from the start on."""

    def __init__(self, start_s: float, most_hours: int | None = None) -> None:
        """Begin.

        Args:
            start_s: start of the first hour.
            most_hours: number of the latest hours that are kept; None keeps all.
        """
        self._start_s = start_s
        self.own, self.on_loaned, self.loaned, self.serving = (Integral(start_s) for _ in range(4))
        self._hours: deque[GpuSeconds] = deque(maxlen=most_hours)
        """Hours that are over."""
        self._over = 0
        """Number of hours that are over."""
        self._closed = GpuSeconds()
        """GPU seconds up to the end of the last hour that is over."""

    def pass_time(self, time_s: float) -> None:
        """Close the hours that are over. Call it before the changes of this time."""
        while time_s >= (end_s := self._start_s + (self._over + 1) * HOUR_S):
            until = self.until(end_s)
            self._hours.append(until.less(self._closed))
            self._over += 1
            self._closed = until

    def until(self, time_s: float) -> GpuSeconds:
        """Return the GPU seconds up to a time that is not before the last change."""
        return GpuSeconds(
            *(integral.until(time_s) for integral in (self.own, self.on_loaned, self.loaned, self.serving))
        )

    def by_hour(self, end_s: float) -> Iterator[tuple[float, float, GpuSeconds]]:
        """Yield start, length and GPU seconds of each kept hour; the last hour ends at `end_s`."""
        for number, hour in enumerate(self._hours, start=self._over - len(self._hours)):
            yield self._start_s + number * HOUR_S, HOUR_S, hour
        last_s = self._start_s + self._over * HOUR_S
        if end_s > last_s:
            yield last_s, end_s - last_s, self.until(end_s).less(self._closed)
