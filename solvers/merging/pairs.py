"""Pairs of tasks of which one may help the other, and a regression on what came of such pairs before.

The outcome of a pair is explained by a sum of effects: of its mode, of the receiver (some tasks gain from
nearly anyone), of the donor, of the sizes of their data, of how much this receiver cares for its donor's
size and this donor for its receiver's, and of the score of transferability where there is one. Effects of
tasks are small until outcomes show them: each group of effects has a normal prior, and its variance is the
one under which the outcomes are most likely (empirical Bayes; MacKay, "Bayesian Interpolation", 1992). So a
group that explains nothing vanishes, and a task without outcomes gets what is usual.

It leans on linear algebra and a search, so it runs in a solver process.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

MergeMode = Literal["temporal", "spatial"]

MOST_OUTCOMES: Final = 400
"""The fit takes time with their cube: 0.5 s for so many."""

_TYPICAL_LOG_SAMPLES: Final = 10.0
_LOG_SAMPLES_SCALE: Final = 2.0
"""ln(22,000), give or take a factor of 7: sizes come out of the order of 1."""
_LOG_VARIANCE_BOUNDS: Final = (-8.0, 4.0)
_USUAL_LOG_VARIANCE: Final = -1.0
_LOG_VARIANCE_SPREAD: Final = 3.0
"""A weak prior on the variances, for when there are few outcomes."""

Array = NDArray[np.float64]
Features = dict[str, dict[str, float]]
"""By group of effects, the effects that a pair has, with their factors."""


class Candidate(NamedTuple):
    """A merge that may be made, seen from the receiver; of a spatial one there are two."""

    donor: str
    receiver: str
    """Tasks: jobs with the same data are of one task."""
    mode: MergeMode
    donor_samples: int
    receiver_samples: int
    """Training data, D."""
    score: float | None = None
    """S(A, B); None if a task has no embedding."""


class Belief(NamedTuple):
    """What is expected of a pair, in the unit of the outcomes."""

    mean: float
    deviation: float
    """Standard deviation of a single outcome, its noise included."""

    @property
    def positive(self) -> float:
        """Probability of an outcome above zero."""
        return 0.5 * math.erfc(-self.mean / (self.deviation * math.sqrt(2.0)))


def regress(outcomes: Sequence[tuple[Candidate, float]], asked: Sequence[Candidate]) -> list[Belief]:
    """What to believe of pairs, after these outcomes.

    Args:
        outcomes: oldest first, of the order of 1. Repeated ones of a pair count as often as they are there.
        The
            latest `MOST_OUTCOMES` are used.
        asked: in any order; thousands take milliseconds.

    Returns:
        one per pair asked. Without outcomes, zero and the usual variance.
    """
    seen = outcomes[-MOST_OUTCOMES:]
    score = _score_scale([candidate for candidate, _ in seen])
    past = [_features(candidate, score) for candidate, _ in seen]
    future = [_features(candidate, score) for candidate in asked]
    columns = _columns([*past, *future])
    known = {group: _matrix(past, group, ids) for group, ids in columns.items()}
    values = np.array([value for _, value in seen], dtype=np.float64)
    variances, noise = _most_likely(list(known.values()), values)

    explained = np.zeros((len(future), len(past)))
    prior = np.zeros(len(future))
    covariance = noise * np.eye(len(past))
    for (group, ids), variance in zip(columns.items(), variances, strict=True):
        new = _matrix(future, group, ids)
        explained += variance * new @ known[group].T
        prior += variance * np.einsum("ij,ij->i", new, new)
        covariance += variance * known[group] @ known[group].T
    means = explained @ np.linalg.solve(covariance, values)
    known_part = np.einsum("ij,ji->i", explained, np.linalg.solve(covariance, explained.T))
    deviations = np.sqrt(np.maximum(prior - known_part, 0.0) + noise)
    return [Belief(float(m), float(d)) for m, d in zip(means, deviations, strict=True)]


def _features(candidate: Candidate, score_scale: tuple[float, float]) -> Features:
    donor, receiver, mode = candidate.donor, candidate.receiver, candidate.mode
    donor_size, receiver_size = _size(candidate.donor_samples), _size(candidate.receiver_samples)
    mean, deviation = score_scale
    score = 0.0 if candidate.score is None else (candidate.score - mean) / deviation
    return {
        "mode": {mode: 1.0},
        "receiver": {receiver: 1.0},
        "receiver in the mode": {f"{mode} {receiver}": 1.0},
        "donor": {donor: 1.0},
        "donor in the mode": {f"{mode} {donor}": 1.0},
        "sizes": {f"{mode} donor": donor_size, f"{mode} receiver": receiver_size},
        "score": {mode: score},
        "receiver's care for the donor's size": {f"{mode} {receiver}": donor_size},
        # A donor that is done before its receiver starts does not care what comes after.
        "donor's care for the receiver's size": {donor: receiver_size} if mode == "spatial" else {},
    }


def _size(samples: int) -> float:
    return (math.log(max(samples, 1)) - _TYPICAL_LOG_SAMPLES) / _LOG_SAMPLES_SCALE


def _score_scale(candidates: Sequence[Candidate]) -> tuple[float, float]:
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) < 2:
        return 0.0, 1.0
    deviation = float(np.std(scores))
    return float(np.mean(scores)), deviation if deviation > 0 else 1.0


def _columns(rows: Sequence[Features]) -> dict[str, dict[str, int]]:
    """By group, the column of each effect."""
    columns: dict[str, dict[str, int]] = {}
    for row in rows:
        for group, effects in row.items():
            ids = columns.setdefault(group, {})
            for effect in effects:
                ids.setdefault(effect, len(ids))
    return columns


def _matrix(rows: Sequence[Features], group: str, columns: Mapping[str, int]) -> Array:
    matrix = np.zeros((len(rows), len(columns)))
    for index, row in enumerate(rows):
        for effect, factor in row[group].items():
            matrix[index, columns[effect]] = factor
    return matrix


def _most_likely(groups: Sequence[Array], values: Array) -> tuple[Array, float]:
    """The variance of each group of effects and of the noise, by the likelihood of the outcomes."""
    squares = [group @ group.T for group in groups]
    identity = np.eye(len(values))

    def loss(logs: Array) -> tuple[float, Array]:
        variances = np.exp(logs)
        covariance = variances[-1] * identity
        for variance, square in zip(variances, squares, strict=False):
            covariance = covariance + variance * square
        inverse = np.linalg.inv(covariance)
        weights = inverse @ values
        slack = np.outer(weights, weights) - inverse
        off = (logs - _USUAL_LOG_VARIANCE) / _LOG_VARIANCE_SPREAD
        total = 0.5 * (values @ weights + np.linalg.slogdet(covariance).logabsdet + off @ off)
        slopes = [np.vdot(slack, square) for square in squares] + [np.trace(slack)]
        return float(total), -0.5 * variances * np.array(slopes) + off / _LOG_VARIANCE_SPREAD

    start = np.full(len(squares) + 1, _USUAL_LOG_VARIANCE)
    if len(values):
        bounds = [_LOG_VARIANCE_BOUNDS] * len(start)
        # Matrices so small are no work for several threads: on a busy machine those wait for each other.
        with threadpool_limits(limits=1):
            start = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    variances = np.exp(start)
    return variances[:-1], float(variances[-1])
