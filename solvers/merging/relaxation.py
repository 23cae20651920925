"""The program with parts of columns allowed: what units and GPUs are worth, and where good plans are.

The dual prices of a linear program tell of every option that is not among its columns whether it would make
the plan better (column generation; Desrosiers and Lübbecke, "A Primer in Column Generation", 2005).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from solvers.merging.options import Floats


class Relaxed(NamedTuple):
    """The best plan in parts of columns."""

    parts: Floats
    """(columns,) from 0 to 1."""
    units: Floats
    """(units,) what it saves that each unit is there: the dual of its constraint (Eq. 10)."""
    gpu: float
    """What one more GPU saves (Eq. 11)."""
    saving: float
    """No choice of these columns saves more."""
    lacking: Floats
    """(columns,) what each saves less than its units and GPUs are worth, never below 0."""


def relax(rows: NDArray[np.void], units: int, gpus: int, time_limit_s: float) -> Relaxed | None:
    """Solve it; None where time does not last.

    Args:
        rows: of `OFFER`, one at least.
        units: how many there are.
        gpus: that there are.
        time_limit_s: above 0.
    """
    count = len(rows)
    column = np.arange(count)
    paired = np.flatnonzero(rows["second"] >= 0)
    constraint = np.r_[rows["first"], rows["second"][paired], np.full(count, units)]
    # Only units that are in a column have a constraint; the last is that of the GPUs.
    there, constraint = np.unique(constraint, return_inverse=True)
    taken = np.r_[np.ones(count + paired.size), rows["gpus"]]
    matrix = csr_matrix((taken, (constraint, np.r_[column, paired, column])), shape=(there.size, count))
    room = np.ones(there.size)
    room[-1] = gpus
    found = linprog(
        -rows["saving"],
        A_ub=matrix,
        b_ub=room,
        bounds=(0.0, None),
        method="highs",
        options={"time_limit": time_limit_s},
    )
    if not found.success:
        return None
    duals = np.maximum(-found.ineqlin.marginals, 0.0)
    of_units = np.zeros(units)
    of_units[there[:-1]] = duals[:-1]
    lacking = matrix.T @ duals - rows["saving"]
    # What HiGHS calls solved is so to its tolerances. By any duals, what they say that units and GPUs are
    # worth, and of each column what it saves beyond that, is a bound.
    most = float(room @ duals) - float(np.minimum(lacking, 0.0).sum())
    return Relaxed(found.x, of_units, float(duals[-1]), most, np.maximum(lacking, 0.0))
