"""Curve of training losses (Ymir, section 4.2, Eq. 3), fitted to the trace of a profile run.

    L(k) = 1 / (b3 k^2 + b2 k + b1) + b0

k counts iterations from 1, L is the loss divided by the largest of the trace, and no coefficient is negative.
So L falls monotonically towards b0. If a trace has no such curve, the fit returns the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import least_squares, nnls

from schemas.merging.estimates import LossFault
from solvers.compiled import Floats

FEWEST_LOSSES: Final = 8
"""Least losses: twice the coefficients. With fewer, a curve of four parameters fits mainly noise."""

_FLOORS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
"""Starts of the search for b0, as parts of the smallest loss."""
_OUTLIER = 0.1
"""Residual in normalised loss, well beyond which residuals count linearly instead of by their square."""
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class LossCurve:
    """Loss curve of Eq. 3, on the loss normalised to its maximum."""

    quadratic: float
    """Coefficient b3."""
    linear: float
    """Coefficient b2."""
    constant: float
    """Coefficient b1."""
    floor: float
    """Limit b0 of the loss."""

    def __post_init__(self) -> None:
        values = (self.quadratic, self.linear, self.constant, self.floor)
        if not all(np.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"coefficients of a loss curve must be finite and not negative, not {values}")
        if self.quadratic + self.linear + self.constant == 0:
            raise ValueError("a loss curve needs one of b3, b2, b1 above zero, or the loss is infinite")

    def loss(self, iteration: float) -> float:
        """Return L(k), for k >= 1."""
        return 1.0 / ((self.quadratic * iteration + self.linear) * iteration + self.constant) + self.floor


def fit_loss_curve(losses: Sequence[float]) -> LossCurve | LossFault:
    """Fit Eq. 3 by bounded least squares, robust against single outliers.

    The squares have many local minima, so the search has several starts. For a fixed b0, the other
    coefficients are linear in 1 / (L - b0), and non-negative least squares give them directly. The best start
    is then refined in all four.

    Args:
        losses: training loss of each iteration, from the first on, in any unit.

    Returns:
        The curve, or the reason why the trace has none: its job may still run, unmerged.
    """
    reason = _unusable(losses)
    if reason is not None:
        return reason
    trace = np.asarray(losses, dtype=np.float64)
    trace = trace / trace.max()
    # Iterations as parts of the trace, so that all coefficients have the same order.
    parts = np.arange(1, len(trace) + 1) / len(trace)
    start = min((_start(trace, parts, floor) for floor in _FLOORS), key=lambda c: _cost(c, trace, parts))
    fit = least_squares(
        lambda c: _curve(c, parts) - trace,
        start,
        jac=lambda c: _slopes(c, parts),
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_OUTLIER,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    quadratic, linear, constant, floor = (float(value) for value in fit.x)
    curve = LossCurve(quadratic / len(trace) ** 2, linear / len(trace), constant, floor)
    if curve.loss(1) <= curve.loss(len(trace)):
        return "flat_loss_curve"
    return curve


def _unusable(losses: Sequence[float]) -> LossFault | None:
    if len(losses) < FEWEST_LOSSES:
        return "too_few_losses"
    if not np.isfinite(losses).all():
        return "loss_not_finite"
    if min(losses) < 0:
        return "loss_negative"
    if max(losses) == 0:
        return "losses_all_zero"
    quarter = len(losses) // 4
    first = np.asarray(losses[:quarter], dtype=np.float64)
    last = np.asarray(losses[-quarter:], dtype=np.float64)
    fall = float(first.mean() - last.mean())
    # Losses of single batches scatter; a fall must be significant against that. The scatter is estimated from
    # neighbours, since within the first quarter the loss itself may fall steeply.
    steps = np.diff(np.asarray(losses, dtype=np.float64))
    error = float(np.median(np.abs(steps))) / quarter**0.5
    if fall <= _STANDARD_ERRORS * error or fall <= 0:
        return "losses_scatter"
    return None


def _start(trace: Floats, parts: Floats, floor_part: float) -> Floats:
    floor = floor_part * trace.min()
    above = np.maximum(trace - floor, 1e-6)
    # An error e of L is an error e / above^2 of 1 / above: the weights make both equal.
    weights = above**2
    powers = np.stack((parts**2, parts, np.ones_like(parts)), axis=1)
    coefficients, _ = nnls(powers * weights[:, None], weights / above)
    # The solver must start inside its bounds.
    return np.append(np.maximum(coefficients, 1e-6), max(floor, 1e-6))


def _curve(coefficients: Floats, parts: Floats) -> Floats:
    quadratic, linear, constant, floor = coefficients
    result: Floats = 1.0 / ((quadratic * parts + linear) * parts + constant) + floor
    return result


def _slopes(coefficients: Floats, parts: Floats) -> Floats:
    """Return the derivatives of the curve, (parts, coefficients)."""
    quadratic, linear, constant, _ = coefficients
    above = 1.0 / ((quadratic * parts + linear) * parts + constant)
    return np.stack((-((above * parts) ** 2), -(above**2) * parts, -(above**2), np.ones_like(parts)), axis=1)


def _cost(coefficients: Floats, trace: Floats, parts: Floats) -> float:
    return float(np.sum((_curve(coefficients, parts) - trace) ** 2))
