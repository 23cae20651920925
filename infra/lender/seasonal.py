"""The seasonal-naive forecast: as on the days before at this time, at today's level."""

from dataclasses import dataclass
from math import fsum

from infra.lender.forecast import clipped, present_load
from infra.lender.history import LoadHistory


@dataclass(frozen=True)
class SeasonalNaive:
    """The mean of this time of the day over the last `days` days, plus today's distance from it.

    The distance is a mean too, over the last `level_intervals`, and fades slowly; what the present differs
    from that by fades fast. So neither an unusual hour nor a burst lasts all day. Where no day before is
    known, as with less than a day of history, everything is forecast to stay as it is.
    """

    days: int = 3
    level_intervals: int = 6
    persistence: float = 0.98
    """The part of today's distance that is left from one interval to the next."""
    burst_persistence: float = 0.5
    """The part of the present's difference from that which is left."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """See `Forecaster`."""
        present = present_load(history)
        distance = self._distance(history)
        if distance is None:
            return [present] * steps
        season_now = self._season(history, history.last)
        burst = 0.0 if season_now is None else present - season_now - distance
        loads = []
        for step in range(1, steps + 1):
            distance *= self.persistence
            burst *= self.burst_persistence
            season = self._season(history, history.last + step)
            loads.append(present if season is None else clipped(season + distance + burst))
        return loads

    def _distance(self, history: LoadHistory) -> float | None:
        """How far today is above the days before of late; None where that is not known."""
        distances = [
            load - season
            for index in range(history.last - self.level_intervals + 1, history.last + 1)
            if (load := history.mean(index)) is not None
            and (season := self._season(history, index)) is not None
        ]
        return fsum(distances) / len(distances) if distances else None

    def _season(self, history: LoadHistory, index: int) -> float | None:
        """The mean load at this time of the days before; None where it is not known of any."""
        day = history.intervals_per_day
        ahead = max(-(-(index - history.last) // day), 1)
        """Whole days to go back from `index` until it lies in the past."""
        known = [
            load
            for back in range(ahead, ahead + self.days)
            if (load := history.mean(index - back * day)) is not None
        ]
        return fsum(known) / len(known) if known else None
