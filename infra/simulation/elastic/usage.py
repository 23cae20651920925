"""How many GPUs are used, over time and by the hour."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

HOUR_S = 3_600.0


@dataclass(slots=True)
class Integral:
    """A sum over time of something that stays the same between changes."""

    since_s: float
    amount: float = 0.0
    total: float = 0.0

    def change(self, time_s: float, difference: float) -> None:
        """It is more by so much from this moment on."""
        self.total += self.amount * (time_s - self.since_s)
        self.amount += difference
        self.since_s = time_s

    def until(self, time_s: float) -> float:
        """The sum up to a moment that is no earlier than the last change."""
        return self.total + self.amount * (time_s - self.since_s)


@dataclass(slots=True)
class GpuSeconds:
    """Sums up to one moment, of GPUs over seconds."""

    own: float = 0.0
    """Of jobs, on the zone's own servers."""
    on_loaned: float = 0.0
    """Of jobs, on servers of other zones."""
    loaned: float = 0.0
    """Servers of other zones that the zone has, whether jobs use them or not."""
    serving: float = 0.0
    """What other zones' load takes of their GPUs."""

    def less(self, other: "GpuSeconds") -> "GpuSeconds":
        """From that moment to this one."""
        return GpuSeconds(
            *(getattr(self, each.name) - getattr(other, each.name) for each in fields(GpuSeconds))
        )


@dataclass
class GpuUsage:
    """Takes changes in the order of their times, and closes each hour from the start on."""

    start_s: float
    hours: list[GpuSeconds] = field(default_factory=list)
    """Those that are over."""

    def __post_init__(self) -> None:
        self.own, self.on_loaned, self.loaned, self.serving = (Integral(self.start_s) for _ in range(4))
        self._closed = GpuSeconds()
        """Up to the end of the last hour that is over."""

    def pass_time(self, time_s: float) -> None:
        """Close the hours that are over. Call it before the changes of this moment."""
        while time_s >= (end_s := self.start_s + (len(self.hours) + 1) * HOUR_S):
            until = self.until(end_s)
            self.hours.append(until.less(self._closed))
            self._closed = until

    def until(self, time_s: float) -> GpuSeconds:
        """All up to a moment that is no earlier than the last change."""
        return GpuSeconds(
            *(integral.until(time_s) for integral in (self.own, self.on_loaned, self.loaned, self.serving))
        )

    def by_hour(self, end_s: float) -> Iterator[tuple[float, float, GpuSeconds]]:
        """The start of each hour, its length and what was used in it; the last one ends at the end."""
        for number, hour in enumerate(self.hours):
            yield self.start_s + number * HOUR_S, HOUR_S, hour
        last_s = self.start_s + len(self.hours) * HOUR_S
        if end_s > last_s:
            yield last_s, end_s - last_s, self.until(end_s).less(self._closed)
