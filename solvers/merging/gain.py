"""The transfer gain G of a merge before it is made (Ymir, section 4.1, Eq. 1).

    G = (P_AB - P_B) / P_B

P_B is the best accuracy of B alone, P_AB the best one of B merged with A. Every finished merge is an outcome,
and every forecast is made anew from all of them.

Two models, one interface. `ScoreRegression` is the paper's: a straight line on the score S(A, B).
`PairEffects` adds what other pairs have shown of the two tasks, and what is known of them beforehand: sizes
and targets. On the measured curves it is right about the sign far more often. What the tasks' own first
epochs show, and their learning rates, made it no better and are left out.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from solvers.merging.pairs import Belief, Candidate, MergeMode, regress

SCALE: Final = 0.005
"""Gains well below half a percent are compared by their size, gains well above by their ratio: asinh(G /
SCALE) is nearly linear below, nearly logarithmic above. Or the few gains of tens of percent would decide
the sign of all others."""

_RIDGE: Final = 1.0
"""Of `ScoreRegression`: a prior as strong as one outcome, which keeps a line through few points flat."""


class GainOutcome(NamedTuple):
    """A merge that was made, seen from its receiver."""

    merge: Candidate
    gain: float
    """G, above -1."""


class ForetoldGain(NamedTuple):
    gain: float
    """G; the median of what is believed."""
    probability: float
    """Of G >= 0."""


class GainModel(Protocol):
    """Pure: the same outcomes and questions get the same answers."""

    def foretell(self, outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[ForetoldGain]:
        """Foretell merges, each from its receiver's side.

        Args:
            outcomes: oldest first.
            asked: pairs, in any order.

        Returns:
            one per pair asked. Without any outcome: no gain, with even chances.

        Raises:
            ValueError: a gain or a score is not finite, or a gain is not above -1.
        """


class PairEffects:
    """Effects of tasks and of their sizes, see `pairs`."""

    def foretell(self, outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[ForetoldGain]:
        _check(outcomes)
        if not asked:
            return []
        seen = [(merge, math.asinh(gain / SCALE)) for merge, gain in outcomes]
        # Beyond what was ever seen, the exponential of an extrapolated effect means nothing.
        least = min((gain for _, gain in outcomes), default=0.0)
        most = max((gain for _, gain in outcomes), default=0.0)
        return [_foretold(belief, least, most) for belief in regress(seen, asked)]


class ScoreRegression:
    """A straight line on S(A, B) for each mode, as in the paper. A pair without a score gets the mode's
    mean."""

    def foretell(self, outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[ForetoldGain]:
        _check(outcomes)
        lines = {mode: _line([o for o in outcomes if o.merge.mode == mode]) for mode in _MODES}
        foretold = []
        for candidate in asked:
            centre, height, slope, deviation = lines[candidate.mode]
            off = 0.0 if candidate.score is None else candidate.score - centre
            belief = Belief(height + slope * off, deviation)
            foretold.append(ForetoldGain(max(belief.mean, -1.0), belief.positive))
        return foretold


_MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


def _check(outcomes: Sequence[GainOutcome]) -> None:
    for outcome in outcomes:
        score = 0.0 if outcome.merge.score is None else outcome.merge.score
        if not (math.isfinite(outcome.gain) and outcome.gain > -1 and math.isfinite(score)):
            raise ValueError(f"gains are finite and above -1, and scores finite: {outcome}")


def _line(outcomes: Sequence[GainOutcome]) -> tuple[float, float, float, float]:
    """The mean score, the gain there, the slope, and the deviation of gains from the line."""
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


def _foretold(belief: Belief, least: float, most: float) -> ForetoldGain:
    # asinh of any possible gain is below 700 by far, so sinh of what is clipped does not overflow.
    low, high = (math.asinh(bound / SCALE) for bound in (min(least, 0.0), max(most, 0.0)))
    return ForetoldGain(SCALE * math.sinh(min(max(belief.mean, low), high)), belief.positive)
