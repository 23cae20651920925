"""Pairs of tasks of which one may help the other, and a regression on what came of such pairs before.

The outcome of a pair is explained by a sum of effects: of its mode, of the receiver (some tasks gain from
nearly anyone), of the donor, of the sizes of their data, of their targets, of how much this receiver cares
for its donor's size and this donor for its receiver's, and of the score of transferability where there is
one. Effects of tasks are small until outcomes show them: each group of effects has a normal prior, and its
variance is the one under which the outcomes are most likely (empirical Bayes; MacKay, "Bayesian
Interpolation", 1992). So a group that explains nothing vanishes, and a task without outcomes gets what is
usual.

It leans on linear algebra and a search, so it runs in a solver process.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

MergeMode = Literal["temporal", "spatial"]

MOST_OUTCOMES: Final = 400
"""The fit takes time with the cube of their number, or of that of effects if there are fewer: 0.5 s for so
many."""

_TYPICAL_LOG_SAMPLES: Final = 10.0
_LOG_SAMPLES_SCALE: Final = 2.0
"""ln(22,000), give or take a factor of 7: sizes come out of the order of 1."""
_TYPICAL_LOG_ROOM: Final = -2.0
_LOG_ROOM_SCALE: Final = 2.0
_LEAST_ROOM: Final = 1e-4
"""Targets from 0.02 to 0.98 are within one unit of a typical 0.86."""
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
    donor_target: float | None = None
    receiver_target: float | None = None
    """Accuracies that they are to reach; None where only iterations count."""


class Belief(NamedTuple):
    """Expected outcome of a pair, in the unit of the outcomes."""

    mean: float
    deviation: float
    """Standard deviation of a single outcome, its noise included."""
    doubt: float = 0.0
    """Standard deviation of the mean: how far it may be off for want of outcomes."""

    @property
    def positive(self) -> float:
        """Probability of an outcome above zero."""
        return 0.5 * math.erfc(-self.mean / (self.deviation * math.sqrt(2.0)))


def regress(outcomes: Sequence[tuple[Candidate, float]], asked: Sequence[Candidate]) -> list[Belief]:
    """Return the beliefs about pairs after these outcomes.

    Args:
        outcomes: oldest first, of the order of 1. Repeated ones of a pair count as often as they are there.
            The latest `MOST_OUTCOMES` are used.
        asked: in any order; thousands take milliseconds.

    Returns:
        one per pair asked. Without outcomes, zero and the usual variance.

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
    # Matrices so small are no work for several threads: on a busy machine those wait for each other.
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
    return [Belief(float(m), float(d), float(s)) for m, d, s in zip(means, deviations, doubts, strict=True)]


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
        "room above the targets": {
            f"{mode} donor": _room(candidate.donor_target),
            f"{mode} receiver": _room(candidate.receiver_target),
        },
        "score": {mode: score},
        "same task": {mode: 1.0} if donor == receiver else {},
        "receiver's care for the donor's size": {f"{mode} {receiver}": donor_size},
        # A donor that is done before its receiver starts does not care what comes after.
        "donor's care for the receiver's size": {donor: receiver_size} if mode == "spatial" else {},
    }


def _size(samples: int) -> float:
    return (math.log(max(samples, 1)) - _TYPICAL_LOG_SAMPLES) / _LOG_SAMPLES_SCALE


def _room(target: float | None) -> float:
    """Return how far a task is from perfect when it is done: of the order of 1, and 0 where that is not
    known."""
    if target is None:
        return 0.0
    return (math.log(max(1.0 - target, _LEAST_ROOM)) - _TYPICAL_LOG_ROOM) / _LOG_ROOM_SCALE


def _score_scale(candidates: Sequence[Candidate]) -> tuple[float, float]:
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) < 2:
        return 0.0, 1.0
    deviation = float(np.std(scores))
    return float(np.mean(scores)), deviation if deviation > 0 else 1.0


def _matrix(rows: Sequence[Features]) -> tuple[Array, NDArray[np.int64]]:
    """A row per pair and a column per effect, and the group of each column."""
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
    """The sum of its squares."""


def _condensed(effects: Array, values: Array) -> tuple[Array, Array, _Rest]:
    """The same outcomes in as many dimensions as there are effects, where there are fewer of these."""
    outcomes, columns = effects.shape
    if outcomes <= columns:
        return effects, values, _Rest(0, 0.0)
    basis, triangle = np.linalg.qr(effects)
    within = basis.T @ values
    outside = values - basis @ within
    return triangle, within, _Rest(outcomes - columns, float(outside @ outside))


def _most_likely(
    effects: Array, groups: NDArray[np.int64], values: Array, rest: _Rest
) -> tuple[Array, float]:
    """The variance of each group of effects and of the noise, by the likelihood of the outcomes."""
    count = int(groups.max()) + 1
    identity = np.eye(len(values))

    def loss(logs: Array) -> tuple[float, Array]:
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
