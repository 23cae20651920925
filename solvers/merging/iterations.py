"""Iterations of a job until its loss hardly falls, alone and merged (Ymir, section 4.2).

Eq. 2, corrected by erratum Y4: the first k with L(k) - L(k + 1) <= 0.001, L normalised to its maximum. In a
temporal merge, L / (1 + G) replaces L, with G the gain of the receiver. In a spatial merge, Eq. 4 adds up the
data of both (erratum Y3).

The decrements of Eq. 3 may rise at first, if b3 b1 is large, and then shrink monotonically. So if the first
is above the threshold, those at or below it are exactly the ones from some k on, and bisection finds that k.
If the first is below the threshold, Eq. 2 gives k = 1, even for a curve that is only slow. Where that
matters, an accuracy is the better target (`accuracy_target`).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.merging.loss_curve import LossCurve

THRESHOLD: Final = 0.001
"""Threshold of Eq. 2: a decrement of the normalised loss that is worth no further iteration."""
_ROUNDING = 1e-12
"""Relative rounding error by which products and quotients may exceed a whole number."""


def fall(curve: LossCurve, iteration: int, gain: float = 0.0) -> float:
    """Return L(k) - L(k + 1), divided by 1 + G, without cancellation."""
    k = float(iteration)
    here = (curve.quadratic * k + curve.linear) * k + curve.constant
    step = curve.quadratic * (2.0 * k + 1.0) + curve.linear
    return step / (here * (here + step)) / (1.0 + gain)


def iterations_to_converge(
    curve: LossCurve, most_iterations: int, gain: float = 0.0, threshold: float = THRESHOLD
) -> int:
    """Return the smallest k with a decrement of at most `threshold`, or `most_iterations` if smaller (Eq. 2).

    Args:
        curve: curve of the job alone.
        most_iterations: limit by its owner, at least 1.
        gain: G of the job in the merge; above -1. 0 for a job alone.
        threshold: above 0.

    Raises:
        ValueError: an argument is outside its range.
    """
    if most_iterations < 1 or threshold <= 0 or not gain > -1:
        raise ValueError(
            f"most_iterations {most_iterations} must be at least 1, threshold {threshold} above 0 and gain "
            f"{gain} above -1"
        )
    if fall(curve, 1, gain) <= threshold:
        return 1
    above, found = 1, most_iterations
    while found - above > 1:
        middle = (above + found) // 2
        if fall(curve, middle, gain) <= threshold:
            found = middle
        else:
            above = middle
    return found


def all_iterations_to_converge(
    coefficients: ArrayLike,
    most_iterations: ArrayLike,
    gains: ArrayLike = 0.0,
    threshold: float = THRESHOLD,
) -> NDArray[np.int64]:
    """Vectorised `iterations_to_converge`, with identical results.

    Args:
        coefficients: (..., 4): b3, b2, b1 and b0 of each curve.
        most_iterations: whole numbers; its shape and that of `gains` are broadcast against (...). For all
            pairs of n jobs, pass coefficients of shape (1, n, 4) and gains of shape (n, n), donors first.
        gains: each above -1.

    Returns:
        Iterations, in the broadcast shape.

    Raises:
        ValueError: a shape does not fit, or a value is outside its range.
    """
    curves = np.asarray(coefficients, dtype=np.float64)
    if curves.ndim < 1 or curves.shape[-1] != 4:
        raise ValueError(f"coefficients have the shape (..., 4), not {curves.shape}")
    quadratic, linear, constant, most, gain = np.broadcast_arrays(
        curves[..., 0],
        curves[..., 1],
        curves[..., 2],
        np.asarray(most_iterations, dtype=np.int64),
        np.asarray(gains, dtype=np.float64),
    )
    if not (np.all(curves >= 0) and np.all(most >= 1) and np.all(gain > -1) and threshold > 0):
        raise ValueError("coefficients must not be negative, most_iterations >= 1, gains > -1, threshold > 0")

    def converged(iteration: NDArray[np.int64]) -> NDArray[np.bool_]:
        k = iteration.astype(np.float64)
        here = (quadratic * k + linear) * k + constant
        step = quadratic * (2.0 * k + 1.0) + linear
        result: NDArray[np.bool_] = step / (here * (here + step)) / (1.0 + gain) <= threshold
        return result

    above = np.ones(most.shape, dtype=np.int64)
    # Jobs that converge at once are found already; for the rest, bisection ends at neighbours.
    found = np.where(converged(above), above, most)
    while np.any(found - above > 1):
        middle = (above + found) // 2
        down = converged(middle) & (found > above)
        found, above = np.where(down, middle, found), np.where(down, above, np.minimum(middle, found))
    return found


def spatial_iterations(
    iterations: tuple[float, float], batch_sizes: tuple[int, int], samples: tuple[int, int]
) -> int:
    """Return the iterations of A || B, in which both jobs end together (Eq. 4, erratum Y3).

    The job that needs more epochs decides; each epoch of the merge has the data of both.

    Args:
        iterations: K_A and K_B, each from Eq. 2 on its own curve.
        batch_sizes: M_A and M_B, sequences per optimizer step.
        samples: D_A and D_B, samples of training data.

    Returns:
        Optimizer steps of M_A + M_B sequences each, rounded up.
    """
    return int(all_spatial_iterations(iterations, batch_sizes, samples))


def all_spatial_iterations(
    iterations: tuple[ArrayLike, ArrayLike],
    batch_sizes: tuple[ArrayLike, ArrayLike],
    samples: tuple[ArrayLike, ArrayLike],
) -> NDArray[np.int64]:
    """Vectorised `spatial_iterations`; the arrays are broadcast against each other."""
    (k_a, k_b), (m_a, m_b), (d_a, d_b) = (
        (np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        for a, b in (iterations, batch_sizes, samples)
    )
    if min(np.min(m_a), np.min(m_b), np.min(d_a), np.min(d_b)) <= 0 or min(np.min(k_a), np.min(k_b)) < 0:
        raise ValueError("batch sizes and samples must be above zero, and iterations not negative")
    steps = np.maximum(k_a * m_a / d_a, k_b * m_b / d_b) * (d_a + d_b) / (m_a + m_b)
    return np.ceil(steps * (1.0 - _ROUNDING)).astype(np.int64)


def iterations_of_epochs(epochs: float, batch_size: int, samples: int) -> int:
    """Return the optimizer steps of so many epochs, each of which may end with a partial batch."""
    return max(1, math.ceil(epochs * -(-samples // batch_size) * (1.0 - _ROUNDING)))
