"""Duration of a job's step by its number of GPUs, fitted to measurements."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, TypeVar

ONE_POINT_ERROR = 0.5
"""Assumed error of a curve through one measurement, which shows nothing of other numbers of GPUs: on
measured profiles of two models on two GPU types, 90 % of steps were predicted within 0.3 to 1."""
TWO_POINT_ERROR = 0.1
"""Assumed error of a curve through two measurements, none of which can be left out to test it: within 0.03 to
0.1 there."""
_LEAST_ERROR = 0.02
"""Steps vary from run to run."""
_MOST_ERROR = 1.0
_LEAST_STEP_S = 1e-6
_LEAST_SPREAD = 1e-9
"""Least spread of the abscissas, relative to their squares, that is more than rounding."""
_LEAST_PART = 1e-3
"""Smaller values, relative to the largest one, count as if they were as large: their relative errors are
noise."""
_MOST_POINTS = 64
_MOST_LEFT_OUT = 16
"""Most measurements that are left out to find the error, so that a curve takes a millisecond."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUNDING = 1e-9

T = TypeVar("T")


class StepPoint(NamedTuple):
    """A measured step of one pass per GPU, with GPUs and durations normalised to the reference GPU."""

    gpus: float
    micro_batch: float
    """Sequences that one GPU takes at a time."""
    pass_s: float
    """Duration of a pass, with its part of the data loader."""
    exchange_s: float
    """Duration of the exchange between GPUs."""


class StepCurve(NamedTuple):
    """Duration of a step: `pass_s` for each pass, `sample_s` for each sequence of a GPU and, with several
    GPUs, `exchange_s` and `exchange_per_gpu_s` for each further one."""

    pass_s: float
    sample_s: float
    exchange_s: float
    exchange_per_gpu_s: float
    relative_error: float
    """Median relative error of measurements that are predicted from the others; an assumption with fewer than
    three."""
    only_gpus: float | None
    """The only measured number of GPUs; None if there are several."""

    def step_s(self, gpus: float, batch: int, micro_batch: int) -> float:
        """Return the duration of a step of `batch` sequences of all GPUs, at most `micro_batch` at a time."""
        share = batch / gpus
        return self._step_s(gpus, math.ceil(share / micro_batch - _ROUNDING), share)

    def exchange_at(self, gpus: float) -> float:
        """Return the part of a step for exchanges between some GPUs (s)."""
        return self.exchange_s + (gpus - 1) * self.exchange_per_gpu_s if gpus > 1 else 0.0

    def error_at(self, point: StepPoint) -> float:
        """Return the relative error at a measured step."""
        measured_s = max(point.pass_s + point.exchange_s, _LEAST_STEP_S)
        return abs(self._step_s(point.gpus, 1, point.micro_batch) / measured_s - 1)

    def _step_s(self, gpus: float, passes: int, share: float) -> float:
        return max(passes * self.pass_s + share * self.sample_s + self.exchange_at(gpus), _LEAST_STEP_S)


def fit_curve(points: Sequence[StepPoint]) -> StepCurve:
    """Fit passes and exchanges, each by a line of least squares of relative errors without negative parts.

    Measurements of one size of passes alone are taken as proportional to it, and an exchange of one number of
    GPUs as half fixed.

    Args:
        points: at least one. Of more than `_MOST_POINTS`, as many count, from all parts of the sequence.
    """
    points = _some(points, _MOST_POINTS)
    curve = _fitted(points)
    if len(points) < 2:
        return curve._replace(relative_error=ONE_POINT_ERROR)
    if len(points) == 2:
        return curve._replace(relative_error=TWO_POINT_ERROR)
    errors = [
        _fitted([*points[:left_out], *points[left_out + 1 :]]).error_at(point)
        for left_out, point in _some(list(enumerate(points)), _MOST_LEFT_OUT)
    ]
    return curve._replace(relative_error=min(max(median(errors), _LEAST_ERROR), _MOST_ERROR))


def _some(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most so many items, from all parts of a sequence and out of step with its patterns."""
    if len(items) <= most:
        return items
    places = {int(number * _GOLDEN % 1.0 * len(items)) for number in range(most)}
    return [items[place] for place in sorted(places)]


def _fitted(points: Sequence[StepPoint]) -> StepCurve:
    passes = [(point.micro_batch, point.pass_s) for point in points]
    exchanges = [(point.gpus - 1, point.exchange_s) for point in points if point.gpus > 1]
    counts = {point.gpus for point in points}
    return StepCurve(
        *line(passes, fixed_part=0.0),
        *line(exchanges, fixed_part=0.5),
        relative_error=0.0,
        only_gpus=counts.pop() if len(counts) == 1 else None,
    )


def line(points: Sequence[tuple[float, float]], fixed_part: float) -> tuple[float, float]:
    """Return a >= 0 and b >= 0 for which a + b x has the least sum of squared relative errors.

    Args:
        points: (x, y) with x > 0 and y >= 0.
        fixed_part: part a / y at the points where all have one x, so that they show a + b x alone.
    """
    most = max((y for _, y in points), default=0.0)
    if most <= 0:
        return 0.0, 0.0
    weights = [1 / max(y / most, _LEAST_PART) ** 2 for _, y in points]
    scale = max(x for x, _ in points)
    weight = math.fsum(weights)
    mean_x = math.fsum(w * x / scale for w, (x, _) in zip(weights, points, strict=True)) / weight
    mean_y = math.fsum(w * y / most for w, (_, y) in zip(weights, points, strict=True)) / weight
    spread = math.fsum(w * (x / scale - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    if spread <= _LEAST_SPREAD * weight:
        return fixed_part * mean_y * most, (1 - fixed_part) * mean_y / mean_x * most / scale
    slope = (
        math.fsum(
            w * (x / scale - mean_x) * (y / most - mean_y) for w, (x, y) in zip(weights, points, strict=True)
        )
        / spread
    )
    fixed = mean_y - slope * mean_x
    if slope < 0:
        slope, fixed = 0.0, mean_y
    elif fixed < 0:
        squares = math.fsum(w * (x / scale) ** 2 for w, (x, _) in zip(weights, points, strict=True))
        products = math.fsum(w * x / scale * y / most for w, (x, y) in zip(weights, points, strict=True))
        slope, fixed = products / squares, 0.0
    return fixed * most, slope * most / scale
