"""How wrong the estimator has been: the columns of Table 2, kept up to date as merges and jobs finish.

Running sums in a fixed order, so a cell gives the same figures on any machine. Memory does not grow.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class GainFigures(NamedTuple):
    """Table 2, transferability, and what makes its percentages meaningful. None: not defined yet."""

    pairs: int
    pearson_r: float | None
    """Of foretold and real gains. Needs two pairs, and differences in both."""
    mape_pct: float | None
    """Mean of |foretold - real| / (1 + real): the error of the accuracy that the receiver was foretold, in
    percent of the real one. Of the gain itself it is not defined, since many gains are zero."""
    gain_error_pct: float | None
    """Sum of |foretold - real| over the sum of |real|: 100 for one who always foretells no gain."""
    sign_pct: float | None
    """Right about gain (G >= 0) or loss."""


class IterationFigures(NamedTuple):
    """Table 2, iterations. None: nothing has finished yet."""

    jobs: int
    mean_ape_pct: float | None
    max_ape_pct: float | None


@dataclass
class GainErrors:
    """Of transfer gains."""

    pairs: int = 0
    foretold_mean: float = 0.0
    real_mean: float = 0.0
    foretold_square: float = 0.0
    """Sum of squared distances from the mean (Welford); likewise the next two."""
    real_square: float = 0.0
    product: float = 0.0
    accuracy_errors: float = 0.0
    gain_errors: float = 0.0
    gains: float = 0.0
    right: int = 0

    def add(self, foretold: float, real: float) -> None:
        """Count a merge.

        Args:
            foretold: G before.
            real: G after, above -1.

        Raises:
            ValueError: a value is not finite, or `real` is not above -1.
        """
        if not (math.isfinite(foretold) and math.isfinite(real) and real > -1):
            raise ValueError(
                f"gains are finite, real ones above -1, not {foretold} (foretold) and {real} (real)"
            )
        self.pairs += 1
        foretold_off, real_off = foretold - self.foretold_mean, real - self.real_mean
        self.foretold_mean += foretold_off / self.pairs
        self.real_mean += real_off / self.pairs
        self.foretold_square += foretold_off * (foretold - self.foretold_mean)
        self.real_square += real_off * (real - self.real_mean)
        self.product += foretold_off * (real - self.real_mean)
        self.accuracy_errors += abs(foretold - real) / (1.0 + real)
        self.gain_errors += abs(foretold - real)
        self.gains += abs(real)
        self.right += (foretold >= 0) == (real >= 0)

    def figures(self) -> GainFigures:
        if not self.pairs:
            return GainFigures(0, None, None, None, None)
        spread = math.sqrt(self.foretold_square) * math.sqrt(self.real_square)
        return GainFigures(
            pairs=self.pairs,
            pearson_r=min(max(self.product / spread, -1.0), 1.0) if spread > 0 else None,
            mape_pct=100.0 * self.accuracy_errors / self.pairs,
            gain_error_pct=100.0 * self.gain_errors / self.gains if self.gains > 0 else None,
            sign_pct=100.0 * self.right / self.pairs,
        )

    def state(self) -> dict[str, Any]:
        """Plain values; `GainErrors(**state)` goes on from there."""
        return asdict(self)


@dataclass
class IterationErrors:
    """Of iterations; one for jobs alone, and one for merged ones."""

    jobs: int = 0
    errors: float = 0.0
    worst: float = 0.0

    def add(self, foretold: float, real: float) -> None:
        """Count a job that has met its target.

        Args:
            foretold: iterations, or epochs; not negative.
            real: in the same unit, above 0.

        Raises:
            ValueError: a value is outside its range.
        """
        if not (math.isfinite(foretold) and foretold >= 0 and math.isfinite(real) and real > 0):
            raise ValueError(
                f"iterations are finite, foretold ones >= 0, real ones above 0, not {foretold} and {real}"
            )
        error = abs(foretold - real) / real
        self.jobs += 1
        self.errors += error
        self.worst = max(self.worst, error)

    def figures(self) -> IterationFigures:
        if not self.jobs:
            return IterationFigures(0, None, None)
        return IterationFigures(self.jobs, 100.0 * self.errors / self.jobs, 100.0 * self.worst)

    def state(self) -> dict[str, Any]:
        """Plain values; `IterationErrors(**state)` goes on from there."""
        return asdict(self)
