"""Where the tokens of a simulated model go: a popularity of experts that is skewed and drifts."""

import math
import random
from dataclasses import dataclass

SKEW = 1.0
"""Popularity falls with an expert's rank to this power. With 1 the first of 16 gets 30 % of the tokens."""
DRIFT_S = 1_800.0
"""In which one order of the experts has given way to another."""


@dataclass(frozen=True)
class RoutedTokens:
    """Of one model; the same seed routes the same."""

    seed: str
    layers: int
    experts: int
    skew: float = SKEW
    drift_s: float = DRIFT_S

    def popularity(self, layer: int, time_s: float) -> list[float]:
        """The part of the tokens that each expert gets at a moment: a mean of two orders, the next of which
        gains weight in the second half of each period."""
        period, place = divmod(time_s / self.drift_s, 1.0)
        weight = max(0.0, 2.0 * place - 1.0)
        now, then = self._order(layer, int(period)), self._order(layer, int(period) + 1)
        return [(1.0 - weight) * one + weight * other for one, other in zip(now, then, strict=True)]

    def counts(self, layer: int, time_s: float, tokens: int) -> tuple[int, ...]:
        """About so many tokens, as they choose experts by chance at a moment."""
        draws = random.Random(f"{self.seed}/{layer}/{time_s}")
        means = [part * tokens for part in self.popularity(layer, time_s)]
        return tuple(max(0, round(draws.gauss(mean, math.sqrt(mean)))) for mean in means)

    def _order(self, layer: int, period: int) -> list[float]:
        ranks = list(range(1, self.experts + 1))
        random.Random(f"{self.seed}/{layer}/{period}").shuffle(ranks)
        weights = [rank**-self.skew for rank in ranks]
        total = math.fsum(weights)
        return [weight / total for weight in weights]
