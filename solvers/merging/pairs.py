"""Pairs of tasks in which one may help the other, and a regression on past outcomes of such pairs.

The outcome of a pair is explained by a sum of effects: of its mode, of the receiver (some tasks gain from
nearly any donor), of the donor, of both sizes of data, of both targets, of each task together with the size
of the other, and of the transferability score, if there is one. Effects of tasks are small until outcomes
show them: each group of effects has a normal prior, and its variance maximises the likelihood of the outcomes
(empirical Bayes; MacKay, "Bayesian Interpolation", 1992). So a group that explains nothing vanishes, and a
task without outcomes gets the mean.

It uses linear algebra and a search, so it runs in a solver process.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from schemas.merging.estimates import MergeMode
from solvers.compiled import Floats

SCALE: Final = 0.005
"""Scale of gains. Gains well below half a percent are compared by their difference, gains well above by their
ratio: asinh(G / SCALE) is nearly linear below and nearly logarithmic above. Otherwise the few gains of tens
of percent would decide the sign of all others."""
MOST_OUTCOMES: Final = 400
"""Most outcomes of a fit. Its time is cubic in their number, or in that of effects if smaller: 0.5 s for so
many."""

_TYPICAL_LOG_SAMPLES: Final = 10.0
_LOG_SAMPLES_SCALE: Final = 2.0
"""Scale of ln(samples) around ln(22,000), a factor of 7: scaled sizes have the order of 1."""
_TYPICAL_LOG_ROOM: Final = -2.0
_LOG_ROOM_SCALE: Final = 2.0
_LEAST_ROOM: Final = 1e-4
"""Least room above a target. Targets from 0.02 to 0.98 are within one unit of a typical 0.86."""
_LEAST_SCORE_DEVIATION: Final = 1e-6
"""Least standard deviation by which pairs are distinguished. The errors of scores are larger, since they are
measured on drawn records."""
_MOST_SCALED_SCORE: Final = 10.0
"""Most deviations of a score from the mean of past ones: beyond them, a line through these is meaningless."""
_LOG_VARIANCE_BOUNDS: Final = (-8.0, 4.0)
_USUAL_LOG_VARIANCE: Final = -1.0
_LOG_VARIANCE_SPREAD: Final = 3.0
"""Spread of the weak prior on the variances, for few outcomes."""

Features = dict[str, dict[str, float]]
"""Factors of the effects of a pair, by group of effects and effect."""


class Candidate(NamedTuple):
    """Possible merge, from the view of the receiver; a spatial merge has two."""

    donor: str
    receiver: str
    """Task: jobs with the same data are of one task."""
    mode: MergeMode
    donor_samples: int
    receiver_samples: int
    """Number of training samples, D."""
    score: float | None = None
    """Score S(A, B); None if a task has no embedding."""
    donor_target: float | None = None
    receiver_target: float | None = None
    """Accuracy to reach; None if only iterations count."""


class Prediction(NamedTuple):
    """Expected outcome of a pair, in the unit of the outcomes."""

    mean: float
    deviation: float
    """Standard deviation of a single outcome, with its noise."""
    doubt: float = 0.0
    """Standard deviation of the mean, because of few outcomes."""

    @property
    def positive(self) -> float:
        """Probability of an outcome above zero."""
        return 0.5 * math.erfc(-self.mean / (self.deviation * math.sqrt(2.0)))


def regress(outcomes: Sequence[tuple[Candidate, float]], asked: Sequence[Candidate]) -> list[Prediction]:
    """Return the predictions for pairs after these outcomes.

    Args:
        outcomes: oldest first, of the order of 1. Repeated outcomes of a pair count repeatedly. The latest
            `MOST_OUTCOMES` are used.
        asked: pairs in any order; thousands take milliseconds.

    Returns:
        One prediction per pair. Without outcomes, zero and the usual variance.

    Raises:
        ValueError: a number is not finite; the message names the pair.
    """
    seen = outcomes[-MOST_OUTCOMES:]
    score = _score_scale([candidate for candidate, _ in seen])
    rows = [_features(candidate, score) for candidate in (*(c for c, _ in seen), *asked)]
    matrix, groups = _matrix(rows)
    past, future = matrix[: len(seen)], matrix[len(seen) :]
    values = np.array([value for _, value in seen], dtype=np.float64)
    for row, candidate in enumerate((*(c for c, _ in seen), *asked)):
        if not np.all(np.isfinite(matrix[row])) or not np.all(np.isfinite(values[row : row + 1])):
            raise ValueError(f"an outcome, a score or a target is not finite: {candidate}")
    # Such small matrices need one thread: on a busy machine, several wait for each other.
    with threadpool_limits(limits=1):
        past, values, rest = _condensed(past, values)
        variances, noise = _most_likely(past, groups, values, rest)
        scaled = future * variances[groups]
        explained = scaled @ past.T
        covariance = (past * variances[groups]) @ past.T + noise * np.eye(len(past))
        means = explained @ np.linalg.solve(covariance, values)
        known = np.einsum("ij,ji->i", explained, np.linalg.solve(covariance, explained.T))
        unknown = np.maximum(np.einsum("ij,ij->i", scaled, future) - known, 0.0)
    deviations = np.sqrt(unknown + noise)
    doubts = np.sqrt(unknown)
    return [
        Prediction(float(m), float(d), float(s)) for m, d, s in zip(means, deviations, doubts, strict=True)
    ]


def _features(candidate: Candidate, score_scale: tuple[float, float]) -> Features:
    donor, receiver, mode = candidate.donor, candidate.receiver, candidate.mode
    donor_size, receiver_size = _size(candidate.donor_samples), _size(candidate.receiver_samples)
    mean, deviation = score_scale
    score = 0.0 if candidate.score is None else _scaled_score((candidate.score - mean) / deviation)
    return {
        "mode": {mode: 1.0},
        "receiver": {receiver: 1.0},
        "receiver in the mode": {f"{mode} {receiver}": 1.0},
        "donor": {donor: 1.0},
        "donor in the mode": {f"{mode} {donor}": 1.0},
        "sizes": {f"{mode} donor": donor_size, f"{mode} receiver": receiver_size},
        "room above the targets": {
            f"{mode} donor": _room(candidate.donor_target),
            f"{mode} receiver": _room(candidate.receiver_target),
        },
        "score": {mode: score},
        "same task": {mode: 1.0} if donor == receiver else {},
        "receiver's care for the donor's size": {f"{mode} {receiver}": donor_size},
        # A donor that ends before its receiver starts does not depend on it.
        "donor's care for the receiver's size": {donor: receiver_size} if mode == "spatial" else {},
    }


def _scaled_score(deviations: float) -> float:
    if not math.isfinite(deviations):
        return deviations  # refused with the name of the pair
    return min(max(deviations, -_MOST_SCALED_SCORE), _MOST_SCALED_SCORE)


def _size(samples: int) -> float:
    return (math.log(max(samples, 1)) - _TYPICAL_LOG_SAMPLES) / _LOG_SAMPLES_SCALE


def _room(target: float | None) -> float:
    """Return the scaled room between a target and perfect accuracy, of the order of 1; 0 if unknown."""
    if target is None:
        return 0.0
    return (math.log(max(1.0 - target, _LEAST_ROOM)) - _TYPICAL_LOG_ROOM) / _LOG_ROOM_SCALE


def _score_scale(candidates: Sequence[Candidate]) -> tuple[float, float]:
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) < 2:
        return 0.0, 1.0
    deviation = float(np.std(scores))
    # The deviation of equal scores is their rounding error, by which nothing may be divided.
    return float(np.mean(scores)), deviation if deviation > _LEAST_SCORE_DEVIATION else 1.0


def _matrix(rows: Sequence[Features]) -> tuple[Floats, NDArray[np.int64]]:
    """Return the matrix with a row per pair and a column per effect, and the group of each column."""
    columns: dict[tuple[str, str], int] = {}
    groups: dict[str, int] = {}
    for row in rows:
        for group, effects in row.items():
            groups.setdefault(group, len(groups))
            for effect in effects:
                columns.setdefault((group, effect), len(columns))
    matrix = np.zeros((len(rows), len(columns)))
    for index, row in enumerate(rows):
        for group, effects in row.items():
            for effect, factor in effects.items():
                matrix[index, columns[group, effect]] = factor
    return matrix, np.array([groups[group] for group, _ in columns], dtype=np.int64)


class _Rest(NamedTuple):
    """Part of the outcomes that no effect can explain."""

    dimensions: int
    squares: float
    """Sum of its squares."""


def _condensed(effects: Floats, values: Floats) -> tuple[Floats, Floats, _Rest]:
    """Reduce the outcomes to as many dimensions as there are effects, if these are fewer."""
    outcomes, columns = effects.shape
    if outcomes <= columns:
        return effects, values, _Rest(0, 0.0)
    basis, triangle = np.linalg.qr(effects)
    within = basis.T @ values
    outside = values - basis @ within
    return triangle, within, _Rest(outcomes - columns, float(outside @ outside))


def _most_likely(
    effects: Floats, groups: NDArray[np.int64], values: Floats, rest: _Rest
) -> tuple[Floats, float]:
    """Return the variance of each group of effects and of the noise that maximise the likelihood."""
    count = int(groups.max()) + 1
    identity = np.eye(len(values))

    def loss(logs: Floats) -> tuple[float, Floats]:
        variances = np.exp(logs)
        covariance = (effects * variances[groups]) @ effects.T + variances[-1] * identity
        lower = np.linalg.cholesky(covariance)
        root, halves, whole = (
            solve_triangular(lower, right, lower=True, check_finite=False)
            for right in (values, effects, identity)
        )
        weights = whole.T @ root
        off = (logs - _USUAL_LOG_VARIANCE) / _LOG_VARIANCE_SPREAD
        total = 0.5 * (root @ root + off @ off) + np.log(np.diag(lower)).sum()
        total += 0.5 * (rest.squares / variances[-1] + rest.dimensions * logs[-1])
        slack = (effects.T @ weights) ** 2 - np.einsum("ij,ij->j", halves, halves)
        noise_slack = weights @ weights - np.vdot(whole, whole)
        noise_slack += rest.squares / variances[-1] ** 2 - rest.dimensions / variances[-1]
        slacks = np.append(np.bincount(groups, slack, count), noise_slack)
        return float(total), -0.5 * variances * slacks + off / _LOG_VARIANCE_SPREAD

    logs = np.full(count + 1, _USUAL_LOG_VARIANCE)
    if len(values):
        bounds = [_LOG_VARIANCE_BOUNDS] * len(logs)
        logs = minimize(loss, logs, jac=True, method="L-BFGS-B", bounds=bounds).x
    variances = np.exp(logs)
    return variances[:-1], float(variances[-1])


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


def forecast_gains(outcomes: Sequence[GainOutcome], asked: Sequence[Candidate]) -> list[GainForecast]:
    """Forecast the transfer gain of merges, each for its receiver (Ymir, section 4.1, Eq. 1).

        G = (P_AB - P_B) / P_B

    P_B is the best accuracy of B alone, P_AB the best one of B merged with A. The paper fits a straight line
    to the score S(A, B). `regress` adds the outcomes of other pairs with the two tasks, and their sizes and
    targets: on the measured curves it predicts the sign correctly far more often. The tasks' own first epochs
    and their learning rates did not improve it and are left out.

    Args:
        outcomes: oldest first.
        asked: pairs, in any order.

    Returns:
        One forecast per pair. Without any outcome: no gain, with even chances.

    Raises:
        ValueError: a gain or a score is not finite, or a gain is not above -1.
    """
    _check(outcomes)
    if not asked:
        return []
    seen = [(merge, math.asinh(gain / SCALE)) for merge, gain in outcomes]
    # Outside the observed range, the exponential of an extrapolated effect is meaningless.
    least = min((gain for _, gain in outcomes), default=0.0)
    most = max((gain for _, gain in outcomes), default=0.0)
    return [_forecast_of(prediction, least, most) for prediction in regress(seen, asked)]


def _check(outcomes: Sequence[GainOutcome]) -> None:
    for outcome in outcomes:
        score = 0.0 if outcome.merge.score is None else outcome.merge.score
        if not (math.isfinite(outcome.gain) and outcome.gain > -1 and math.isfinite(score)):
            raise ValueError(f"gains must be finite and above -1, and scores finite: {outcome}")


def _forecast_of(prediction: Prediction, least: float, most: float) -> GainForecast:
    # asinh of any possible gain is far below 700, so sinh of the clipped value does not overflow.
    low, high = (math.asinh(bound / SCALE) for bound in (min(least, 0.0), max(most, 0.0)))
    return GainForecast(SCALE * math.sinh(min(max(prediction.mean, low), high)), prediction.positive)
