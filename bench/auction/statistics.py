"""Means over paired runs, with their confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Student's t at 0.975, by degrees of freedom from 1.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
MOST_VALUES = len(_T_975) + 1


@dataclass(frozen=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval; no width from a single value."""

    mean: float
    half_width: float | None


def interval(values: Sequence[float]) -> Interval:
    """Of independent values, by Student's t.

    Raises:
        ValueError: no values, or more than the table of t knows.
    """
    if not 1 <= len(values) <= MOST_VALUES:
        raise ValueError(f"{len(values)} values, from 1 to {MOST_VALUES} are needed")
    if len(values) == 1:
        return Interval(values[0], None)
    error = stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), _T_975[len(values) - 2] * error)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of log y over log x: the power with which y grows."""
    log_x, log_y = [math.log(value) for value in x], [math.log(value) for value in y]
    centre_x, centre_y = fmean(log_x), fmean(log_y)
    rise = math.fsum((a - centre_x) * (b - centre_y) for a, b in zip(log_x, log_y, strict=True))
    return rise / math.fsum((a - centre_x) ** 2 for a in log_x)
