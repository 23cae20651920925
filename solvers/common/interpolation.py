"""Interpolation of measured step times, with its error."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple


class Interpolated(NamedTuple):
    """A value between measurements, and its relative error."""

    value: float
    relative_error: float
    """Largest relative error of inner measurements that are predicted from their neighbours; 1 with fewer
    than three measurements, since the error is unknown then."""


def interpolated(measured: Mapping[int, float], at: int) -> Interpolated | None:
    """Return the value at a number of sequences or GPUs, from measurements at other numbers.

    Between two measurements, it is on the line through them. Outside, it is on the continuation of the
    nearest line, within two limits. It does not fall, since a step with more work takes no less time; and it
    grows at most in proportion to the number, since the parts of the work could run one after the other. So
    it is positive and finite. None if the only measurement is at another number.
    """
    if at in measured:
        return Interpolated(measured[at], 0.0)
    if len(measured) < 2:
        return None
    return Interpolated(_value(measured, at), _left_out_error(measured))


def _value(measured: Mapping[int, float], at: int) -> float:
    numbers = sorted(measured)
    inner = next(((a, b) for a, b in pairwise(numbers) if a < at < b), None)
    low, high = inner or (tuple(numbers[:2]) if at < numbers[0] else tuple(numbers[-2:]))
    part = (at - low) / (high - low)
    value = measured[low] * (1 - part) + measured[high] * part
    if inner is not None:
        return value
    nearest = low if at < low else high
    bounds = sorted((measured[nearest], measured[nearest] * at / nearest))
    return min(max(value, bounds[0]), bounds[1])


def _left_out_error(measured: Mapping[int, float]) -> float:
    inner = sorted(measured)[1:-1]
    if not inner:
        return 1.0
    return max(
        abs(_value({n: v for n, v in measured.items() if n != left_out}, left_out) / measured[left_out] - 1)
        for left_out in inner
    )
