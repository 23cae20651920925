"""Routing of the tokens of a simulated model: a popularity of experts that is skewed and drifts."""

import math
import random
from dataclasses import dataclass

SKEW = 1.0
"""Exponent of the popularity by an expert's rank. With 1, the first of 16 gets 30 % of the tokens."""
DRIFT_S = 1_800.0
"""Time in which one order of the experts changes to another."""


@dataclass(frozen=True)
class SimulatedRouting:
    """Routing of one model; equal seeds give equal routings."""

    seed: str
    layers: int
    experts: int
    skew: float = SKEW
    drift_s: float = DRIFT_S

    def popularity(self, layer: int, time_s: float) -> list[float]:
        """Return the part of the tokens of each expert at a time: a mean of two orders, the next of which
        gains weight in the second half of each period."""
        period, place = divmod(time_s / self.drift_s, 1.0)
        weight = max(0.0, 2.0 * place - 1.0)
        now, then = self._order(layer, int(period)), self._order(layer, int(period) + 1)
        return [(1.0 - weight) * one + weight * other for one, other in zip(now, then, strict=True)]

    def counts(self, layer: int, time_s: float, tokens: int) -> tuple[int, ...]:
        """Return random counts, about `tokens` together, of the tokens of each expert at a time."""
        rng = random.Random(f"{self.seed}/{layer}/{time_s}")
        means = [part * tokens for part in self.popularity(layer, time_s)]
        return tuple(max(0, round(rng.gauss(mean, math.sqrt(mean)))) for mean in means)

    def _order(self, layer: int, period: int) -> list[float]:
        ranks = list(range(1, self.experts + 1))
        random.Random(f"{self.seed}/{layer}/{period}").shuffle(ranks)
        weights = [rank**-self.skew for rank in ranks]
        total = math.fsum(weights)
        return [weight / total for weight in weights]
