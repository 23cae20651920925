"""Correctly rounded sum for compiled code: the same bits as `math.fsum`, in any order."""

import numpy as np

from solvers.compiled import Floats, kernel

_MOST_PARTIALS = 40
"""Most partials: they do not overlap, and no more of 53 bits each fit into a double's 2,098 bits."""


@kernel
def exact_sum(values: Floats) -> float:
    """Return the sum of finite numbers, rounded once (J. R. Shewchuk, "Adaptive Precision Floating-Point
    Arithmetic and Fast Robust Geometric Predicates", 1997).

    Args:
        values: one-dimensional; no partial sum may overflow.
    """
    partials = np.empty(_MOST_PARTIALS)
    count = 0
    for index in range(values.size):
        carried = values[index]
        kept = 0
        for place in range(count):
            other = partials[place]
            if abs(carried) < abs(other):
                carried, other = other, carried
            high = carried + other
            low = other - (high - carried)
            if low != 0.0:
                partials[kept] = low
                kept += 1
            carried = high
        partials[kept] = carried
        count = kept + 1
    if count == 0:
        return 0.0
    count -= 1
    total: float = partials[count]
    rest = 0.0
    while count > 0:
        count -= 1
        before = total
        total = before + partials[count]
        rest = partials[count] - (total - before)
        if rest != 0.0:
            break
    # Half a unit in the last place is rounded to even only if nothing lies beyond it.
    beyond = partials[count - 1] if count > 0 else 0.0
    if (rest < 0.0 and beyond < 0.0) or (rest > 0.0 and beyond > 0.0):
        twice = rest * 2.0
        rounded = total + twice
        if twice == rounded - total:
            total = rounded
    # The sum of negative zeros is zero, as the empty sum.
    return total + 0.0
