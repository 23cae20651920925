"""Errors of the estimator: the columns of Table 2, updated as merges and jobs finish.

Running sums in a fixed order, so a cell has the same figures on every machine. Memory does not grow.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

_ROUNDING = 1e-12
"""Largest relative rounding error of a mean: values that differ by less are equal."""


class GainFigures(NamedTuple):
    """Transferability figures of Table 2, with the context of its percentages. None: not defined yet."""

    pairs: int
    pearson_r: float | None
    """Correlation of forecast and real gains. Needs two pairs, with different values of both."""
    mape_pct: float | None
    """Mean of |forecast - real| / (1 + real): the error of the receiver's forecast accuracy, in percent of
    the real one. For the gain itself it is not defined, since many gains are zero."""
    gain_error_pct: float | None
    """Sum of |forecast - real| over the sum of |real|: 100 for a constant forecast of no gain."""
    sign_pct: float | None
    """Percentage of right forecasts of gain (G >= 0) or loss."""


class IterationFigures(NamedTuple):
    """Iteration figures of Table 2. None: nothing has finished yet."""

    jobs: int
    mean_ape_pct: float | None
    max_ape_pct: float | None


@dataclass
class GainErrors:
    """Errors of forecast transfer gains."""

    pairs: int = 0
    forecast_mean: float = 0.0
    real_mean: float = 0.0
    forecast_square: float = 0.0
    """Sum of squared distances from the mean (Welford), as the next two."""
    real_square: float = 0.0
    product: float = 0.0
    accuracy_errors: float = 0.0
    gain_errors: float = 0.0
    gains: float = 0.0
    right: int = 0

    def add(self, forecast: float, real: float) -> None:
        """Count a merge.

        Args:
            forecast: forecast G.
            real: real G, above -1.

        Raises:
            ValueError: a value is not finite, or `real` is not above -1.
        """
        if not (math.isfinite(forecast) and math.isfinite(real) and real > -1):
            raise ValueError(
                f"gains must be finite, and real ones above -1, not {forecast} (forecast) and {real} (real)"
            )
        self.pairs += 1
        forecast_off, real_off = forecast - self.forecast_mean, real - self.real_mean
        self.forecast_mean += forecast_off / self.pairs
        self.real_mean += real_off / self.pairs
        self.forecast_square += forecast_off * (forecast - self.forecast_mean)
        self.real_square += real_off * (real - self.real_mean)
        self.product += forecast_off * (real - self.real_mean)
        self.accuracy_errors += abs(forecast - real) / (1.0 + real)
        self.gain_errors += abs(forecast - real)
        self.gains += abs(real)
        self.right += (forecast >= 0) == (real >= 0)

    def figures(self) -> GainFigures:
        if not self.pairs:
            return GainFigures(0, None, None, None, None)
        squares = ((self.forecast_square, self.forecast_mean), (self.real_square, self.real_mean))
        is_spread = all(square > self.pairs * (_ROUNDING * mean) ** 2 for square, mean in squares)
        spread = math.prod(math.sqrt(square) for square, _ in squares) if is_spread else 0.0
        return GainFigures(
            pairs=self.pairs,
            pearson_r=min(max(self.product / spread, -1.0), 1.0) if spread > 0 else None,
            mape_pct=100.0 * self.accuracy_errors / self.pairs,
            gain_error_pct=100.0 * self.gain_errors / self.gains if self.gains > 0 else None,
            sign_pct=100.0 * self.right / self.pairs,
        )


@dataclass
class IterationErrors:
    """Errors of forecast iterations, separate for jobs alone and merged ones."""

    jobs: int = 0
    errors: float = 0.0
    worst: float = 0.0

    def add(self, forecast: float, real: float) -> None:
        """Count a job that has met its target.

        Args:
            forecast: forecast iterations or epochs, not negative.
            real: real number in the same unit, above 0.

        Raises:
            ValueError: a value is outside its range.
        """
        if not (math.isfinite(forecast) and forecast >= 0 and math.isfinite(real) and real > 0):
            raise ValueError(
                f"iterations must be finite, forecasts >= 0, real ones above 0, not {forecast} and {real}"
            )
        error = abs(forecast - real) / real
        self.jobs += 1
        self.errors += error
        self.worst = max(self.worst, error)

    def figures(self) -> IterationFigures:
        if not self.jobs:
            return IterationFigures(0, None, None)
        return IterationFigures(self.jobs, 100.0 * self.errors / self.jobs, 100.0 * self.worst)
