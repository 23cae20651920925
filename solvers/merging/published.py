"""The estimator as it is printed (Ymir, sections 4.1 and 4.2): Eqs. 1 to 4 and a line of gains on scores.

    G = (P_AB - P_B) / P_B                                              (Eq. 1)
    K = the first k with L(k) - L(k + 1) <= 0.001                       (Eq. 2, erratum Y4)
    L = 1 / (b3 k^2 + b2 k + b1) + b0, over its maximum                 (Eq. 3, `loss_curve`)
    K of A || B = max(K_A M_A / D_A, K_B M_B / D_B) (D_A + D_B) / (M_A + M_B)   (Eq. 4, erratum Y3)

G is forecast by a straight line on the score S(A, B), one for each mode, through the results of past merges.
In a merge, L / (1 + G) replaces L. This gives the count of a temporal merge; for a spatial merge, Eq. 4 joins
the counts of both jobs. Plans apply Eq. 4 themselves, so an estimate is the part of its iterations that a job
needs. Nothing is learned from iterations: a job alone is estimated once, by its profile run. `merges: shown`
needs the evidence of the learned estimator; `merges: expected` plans as printed, by Eqs. 12 and 13 alone.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from schemas.merging.estimates import MergeMode
from solvers.merging.loss_curve import LossCurve
from solvers.merging.pairs import GainOutcome

THRESHOLD: Final = 0.001
"""Threshold of Eq. 2: if an iteration lowers the normalised loss by no more than this, training ends."""
_LEAST_SCORES: Final = 3
"""Least number of scores of a line. Two points always lie on a line, and show nothing about its error."""
_LEAST_DEVIATION: Final = 1e-3
"""Least standard deviation of the scores of a line. Scores are measured on drawn records, so a slope over a
smaller range is measurement error."""


class GainLine(NamedTuple):
    """Straight line of gains over scores, limited to the range of seen gains."""

    score: float
    """Mean of the scores."""
    gain: float
    """Gain there."""
    slope: float
    least: float
    most: float
    """Least and most gain seen: outside of them, a line through few points is meaningless."""

    def at(self, score: float | None) -> float:
        """Return the gain at a score, or the mean without one, within the gains that were seen."""
        off = 0.0 if score is None else score - self.score
        return min(max(self.gain + self.slope * off, self.least), self.most)


def gain_line(outcomes: Sequence[GainOutcome], mode: MergeMode) -> GainLine:
    """Fit the line of a mode by least squares.

    Returns:
        The line. With less than three scores, or a deviation of the scores below 0.001, it is flat through
        the mean. Without outcomes, it is no gain.
    """
    seen = [one for one in outcomes if one.merge.mode == mode]
    points = [(one.merge.score, one.gain) for one in seen if one.merge.score is not None]
    gains = [gain for _, gain in points] or [one.gain for one in seen] or [0.0]
    gain, count = math.fsum(gains) / len(gains), len(points)
    score = math.fsum(score for score, _ in points) / count if points else 0.0
    squares = math.fsum((one - score) ** 2 for one, _ in points)
    slope = 0.0
    if count >= _LEAST_SCORES and squares >= count * _LEAST_DEVIATION**2:
        slope = math.fsum((one - score) * (g - gain) for one, g in points) / squares
    return GainLine(score, gain, slope, min(gains), max(gains))


def fall(curve: LossCurve, iteration: int, gain: float = 0.0) -> float:
    """Return L(k) - L(k + 1), divided by 1 + G, without cancellation."""
    k = float(iteration)
    here = (curve.quadratic * k + curve.linear) * k + curve.constant
    step = curve.quadratic * (2.0 * k + 1.0) + curve.linear
    return step / here / (here + step) / (1.0 + gain)


def iterations_to_converge(curve: LossCurve, most_iterations: int, gain: float = 0.0) -> int:
    """Return the smallest k with a decrement of at most `THRESHOLD`, or `most_iterations` if smaller (Eq. 2).

    The decrements of Eq. 3 may rise at first, and then shrink monotonically. If the first is above the
    threshold, there is a k from which on all are at or below it, and bisection finds that k. If the first is
    below the threshold, Eq. 2 gives k = 1, even for a curve that only starts slowly.

    Args:
        curve: curve of the job alone.
        most_iterations: limit by its user, at least 1.
        gain: G of the job in the merge, above -1; 0 for a job alone.

    Raises:
        ValueError: an argument is outside its range.
    """
    if most_iterations < 1 or not gain > -1:
        raise ValueError(f"most_iterations {most_iterations} must be at least 1 and gain {gain} above -1")
    if fall(curve, 1, gain) <= THRESHOLD:
        return 1
    above, found = 1, most_iterations
    while found - above > 1:
        middle = (above + found) // 2
        if fall(curve, middle, gain) <= THRESHOLD:
            found = middle
        else:
            above = middle
    return found
