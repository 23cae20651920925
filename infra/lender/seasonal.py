"""The seasonal-naive forecast: the load of the days before at this time, at today's level."""

from dataclasses import dataclass
from math import fsum

from infra.lender.forecast import clipped, present_load
from infra.lender.history import LoadHistory


@dataclass(frozen=True)
class SeasonalNaive:
    """Mean load at this time of day over the last `days` days, plus today's distance from it.

    The distance is a mean too, over the last `level_intervals`, and fades slowly. The present load's
    difference from both, a burst, fades fast. So neither an unusual hour nor a burst lasts all day. Where the
    loads of the days before are unknown, as in the first day, the forecast is the present load.
    """

    days: int = 3
    level_intervals: int = 6
    persistence: float = 0.98
    """Part of today's distance that is left from one interval to the next."""
    burst_persistence: float = 0.5
    """Part of a burst that is left from one interval to the next."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`."""
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
        """Return the mean of recent loads above those of the days before; None where it is unknown."""
        distances = [
            load - season
            for index in range(history.last - self.level_intervals + 1, history.last + 1)
            if (load := history.mean(index)) is not None
            and (season := self._season(history, index)) is not None
        ]
        return fsum(distances) / len(distances) if distances else None

    def _season(self, history: LoadHistory, index: int) -> float | None:
        """Return the mean load at this time of the days before; None where all are unknown."""
        day = history.intervals_per_day
        ahead = max(-(-(index - history.last) // day), 1)
        """Whole days from `index` back to the nearest past one."""
        known = [
            load
            for back in range(ahead, ahead + self.days)
            if (load := history.mean(index - back * day)) is not None
        ]
        return fsum(known) / len(known) if known else None
