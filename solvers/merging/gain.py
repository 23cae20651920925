"""Forecast of the transfer gain G of a merge (Ymir, section 4.1, Eq. 1).

    G = (P_AB - P_B) / P_B

P_B is the best accuracy of B alone, P_AB the best one of B merged with A. Every finished merge is an outcome,
and every forecast uses all outcomes.

There are two models with one interface. `ScoreRegression` is the paper's: a straight line on the score S(A,
B). `PairEffects` adds the outcomes of other pairs with the two tasks, and their sizes and targets. On the
measured curves it predicts the sign correctly far more often. The tasks' own first epochs and their learning
rates did not improve it and are left out.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from solvers.merging.pairs import Candidate, MergeMode, Prediction, regress

SCALE: Final = 0.005
"""Scale of gains. Gains well below half a percent are compared by their difference, gains well above by their
ratio: asinh(G / SCALE) is nearly linear below and nearly logarithmic above. Otherwise the few gains of tens
of percent would decide the sign of all others."""

_RIDGE: Final = 1.0
"""Prior of `ScoreRegression`, as strong as one outcome. It keeps a line through few points flat."""


class GainOutcome(NamedTuple):
    """Finished merge, from the view of its receiver."""

    merge: Candidate
    gain: float
    """Gain G, above -1."""


class GainForecast(NamedTuple):
    gain: float
    """Median of the forecast G."""
    probability: float
    """Probability of G >= 0."""


class GainModel(Protocol):
    """Model of gains. It is pure: equal arguments give equal forecasts."""

    def forecast(self, outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[GainForecast]:
        """Forecast the gains of merges, each for its receiver.

        Args:
            outcomes: oldest first.
            asked: pairs, in any order.

        Returns:
            One forecast per pair. Without any outcome: no gain, with even chances.

        Raises:
            ValueError: a gain or a score is not finite, or a gain is not above -1.
        """


class PairEffects:
    """Model of the effects of tasks and of their sizes, see `pairs`."""

    def forecast(self, outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[GainForecast]:
        _check(outcomes)
        if not asked:
            return []
        seen = [(merge, math.asinh(gain / SCALE)) for merge, gain in outcomes]
        # Outside the observed range, the exponential of an extrapolated effect is meaningless.
        least = min((gain for _, gain in outcomes), default=0.0)
        most = max((gain for _, gain in outcomes), default=0.0)
        return [_forecast_of(prediction, least, most) for prediction in regress(seen, asked)]


class ScoreRegression:
    """Straight line on S(A, B) per mode (paper). Pairs without a score get the mean of their mode."""

    def forecast(self, outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[GainForecast]:
        _check(outcomes)
        lines = {mode: _line([o for o in outcomes if o.merge.mode == mode]) for mode in _MODES}
        forecasts = []
        for candidate in asked:
            centre, height, slope, deviation = lines[candidate.mode]
            off = 0.0 if candidate.score is None else candidate.score - centre
            prediction = Prediction(height + slope * off, deviation)
            forecasts.append(GainForecast(max(prediction.mean, -1.0), prediction.positive))
        return forecasts


_MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


def _check(outcomes: Sequence[GainOutcome]) -> None:
    for outcome in outcomes:
        score = 0.0 if outcome.merge.score is None else outcome.merge.score
        if not (math.isfinite(outcome.gain) and outcome.gain > -1 and math.isfinite(score)):
            raise ValueError(f"gains must be finite and above -1, and scores finite: {outcome}")


def _line(outcomes: Sequence[GainOutcome]) -> tuple[float, float, float, float]:
    """Return the mean score, the gain there, the slope, and the deviation of gains from the line."""
    gains = np.array([outcome.gain for outcome in outcomes])
    height = float(gains.sum() / (len(gains) + _RIDGE))
    scored = [(o.merge.score, o.gain) for o in outcomes if o.merge.score is not None]
    centre, slope = 0.0, 0.0
    if len(scored) > 1:
        scores, of_scored = np.array(scored, dtype=np.float64).T
        centre = float(scores.mean())
        off, spread = scores - centre, float(scores.std())
        if spread > 0:
            slope = float(off @ (of_scored - height) / (off @ off + _RIDGE * spread**2))
    errors = [o.gain - height - slope * ((o.merge.score or centre) - centre) for o in outcomes]
    deviation = math.sqrt((math.fsum(e * e for e in errors) + SCALE**2) / (len(errors) + 1))
    return centre, height, slope, deviation


def _forecast_of(prediction: Prediction, least: float, most: float) -> GainForecast:
    # asinh of any possible gain is far below 700, so sinh of the clipped value does not overflow.
    low, high = (math.asinh(bound / SCALE) for bound in (min(least, 0.0), max(most, 0.0)))
    return GainForecast(SCALE * math.sinh(min(max(prediction.mean, low), high)), prediction.positive)
