"""Relaxation of the program to fractional columns: prices of units and GPUs, and likely columns.

The dual prices of a linear program show of every option outside its columns whether it would improve the plan
(column generation; Desrosiers and Lübbecke, "A Primer in Column Generation", 2005).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from solvers.merging.options import Floats


class RelaxedPlan(NamedTuple):
    """Best plan in fractional columns."""

    parts: Floats
    """Fraction of each column, from 0 to 1, (columns,)."""
    units: Floats
    """Value of each unit: the dual of its constraint (Eq. 10), (units,)."""
    gpu: float
    """Saving by one more GPU (Eq. 11)."""
    saving: float
    """Upper bound on the saving by these columns."""
    lacking: Floats
    """Value of its units and GPUs less the saving of each column, never below 0, (columns,)."""


def relax(rows: NDArray[np.void], units: int, gpus: int, time_limit_s: float) -> RelaxedPlan | None:
    """Solve the relaxation; None if the time limit is too short.

    Args:
        rows: rows of `OFFER`, at least one.
        units: number of units.
        gpus: number of all GPUs.
        time_limit_s: above 0.
    """
    count = len(rows)
    column = np.arange(count)
    paired = np.flatnonzero(rows["second"] >= 0)
    constraint = np.r_[rows["first"], rows["second"][paired], np.full(count, units)]
    # Only units in a column have a constraint; the last is that of the GPUs.
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
    # HiGHS solves to its tolerances. For any duals, the values of units and GPUs, plus the saving of each
    # column beyond them, are a bound.
    most = float(room @ duals) - float(np.minimum(lacking, 0.0).sum())
    return RelaxedPlan(found.x, of_units, float(duals[-1]), most, np.maximum(lacking, 0.0))
