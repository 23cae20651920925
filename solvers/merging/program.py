"""Integer program of the task merger (Eqs. 8 to 13), its relaxation, and a plan that is found at once.

A column is a choice: a number of GPUs for one unit, or for two merged ones. Each unit is in at most one
column, and waits if it is in none. These are constraints 9 and 10 with erratum Y2: a waiting unit has a = 0,
and does not count as running.

- `choose` solves the program, as a Pyomo model, by HiGHS.
- `relax` solves it in fractional columns. The dual prices of that linear program show of every option outside
  its columns whether it would improve the plan (column generation; Desrosiers and Lübbecke, "A Primer in
  Column Generation", 2005).
- `incumbent` finds the plan from which the program starts, and which is the result if time ends the program.
  Columns are taken in an order, as long as their units are free and GPUs are left. Then a column replaces
  others if it saves more. The present allocation is one such order, so the plan is never worse than that.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray
from pyomo.contrib.appsi.base import TerminationCondition
from pyomo.contrib.appsi.solvers.highs import Highs
from pyomo.core.expr import LinearExpression
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from solvers.compiled import Floats

_PRICES = 6
"""Number of prices tried without information on likely columns."""


class Column(NamedTuple):
    """Choice that may be in the plan."""

    units: tuple[int, ...]
    """One unit, or two that are merged."""
    gpus: int
    saving: float
    """Reduction of cost against waiting."""
    is_present: bool
    """Whether it is the present allocation."""


class Chosen(NamedTuple):
    """Solution of the program."""

    columns: tuple[int, ...]
    """Indices of columns, ascending."""
    bound: float
    """Upper bound on the saving by these columns."""
    is_solved: bool
    """Whether it was solved to the gap before the time limit."""


def choose(
    columns: Sequence[Column], gpus: int, start: Sequence[int], time_limit_s: float, gap: float
) -> Chosen | None:
    """Return the columns that save most together; None if HiGHS finds nothing in time, not even `start`.

    Args:
        columns: at least one.
        gpus: number of all GPUs (R, Eq. 11).
        start: indices of columns that can be chosen together. HiGHS starts from it.
        gap: difference of bound and saving at which to stop.
    """
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(len(columns)), domain=pyo.Binary)
    variables = list(model.x.values())
    chosen_first = set(start)
    for index, variable in enumerate(variables):
        variable.set_value(int(index in chosen_first), skip_validation=True)
    members: dict[int, list[int]] = {}
    for index, column in enumerate(columns):
        for unit in column.units:
            members.setdefault(unit, []).append(index)
    model.once = pyo.ConstraintList()
    for indices in members.values():
        terms = LinearExpression(
            linear_coefs=[1] * len(indices), linear_vars=[variables[index] for index in indices]
        )
        model.once.add((None, terms, 1))
    used = LinearExpression(linear_coefs=[column.gpus for column in columns], linear_vars=variables)
    model.capacity = pyo.Constraint(rule=(None, used, gpus))
    saved = LinearExpression(linear_coefs=[column.saving for column in columns], linear_vars=variables)
    model.saving = pyo.Objective(expr=saved, sense=pyo.maximize)
    solver = Highs()
    solver.config.time_limit = time_limit_s
    solver.config.mip_gap = 0.0
    solver.config.warmstart = True
    solver.config.load_solution = False
    solver.highs_options = {"threads": 1, "mip_abs_gap": gap}
    solver.config.stream_solver = False
    results = solver.solve(model)
    if results.best_feasible_objective is None or not math.isfinite(results.best_feasible_objective):
        return None
    assert results.termination_condition in (
        TerminationCondition.optimal,
        TerminationCondition.maxTimeLimit,
    ), results.termination_condition
    results.solution_loader.load_vars()
    chosen = tuple(index for index, variable in enumerate(variables) if variable.value > 0.5)
    is_solved = results.termination_condition == TerminationCondition.optimal
    return Chosen(chosen, float(results.best_objective_bound), is_solved)


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
    coefficients = np.r_[np.ones(count + paired.size), rows["gpus"]]
    matrix = csr_matrix(
        (coefficients, (constraint, np.r_[column, paired, column])), shape=(there.size, count)
    )
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


def incumbent(columns: Sequence[Column], gpus: int, likely: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of columns that can be chosen together, ascending.

    Args:
        columns: each with a saving above 0.
        gpus: number of all GPUs.
        likely: indices of all columns, those likely in a good plan first; empty if unknown.
    """
    if not columns:
        return ()
    savings = np.array([column.saving for column in columns])
    sizes = np.array([column.gpus for column in columns], np.float64)
    per_gpu = savings / sizes
    by_rate = np.argsort(-per_gpu, kind="stable").tolist()
    present = [index for index, column in enumerate(columns) if column.is_present]
    orders: list[Sequence[int]] = [[*present, *(likely or by_rate)]]
    if likely:
        orders.append(likely)
    else:
        # By their saving beyond a price per GPU. The right price is unknown.
        for price in (0.0, *np.quantile(per_gpu, np.linspace(0.0, 1.0, _PRICES - 1)).tolist()):
            worth = savings - price * sizes
            order = np.argsort(-worth, kind="stable")
            orders.append([*order[worth[order] > 0.0].tolist(), *by_rate])
    plans = [_Plan(columns, gpus).filled(order, by_rate) for order in orders]
    best = max(plans, key=lambda plan: plan.saving)
    return tuple(sorted(best.chosen))


class _Plan:
    """Columns chosen, and the GPUs left."""

    def __init__(self, columns: Sequence[Column], gpus: int) -> None:
        self._columns = columns
        self._left = gpus
        self._of_unit: dict[int, int] = {}
        self.chosen: set[int] = set()

    @property
    def saving(self) -> float:
        return sum(self._columns[index].saving for index in sorted(self.chosen))

    def filled(self, order: Iterable[int], by_rate: Sequence[int]) -> "_Plan":
        """Return the plan of columns that fit in an order, improved by columns that replace others."""
        for index in order:
            column = self._columns[index]
            if column.gpus <= self._left and all(unit not in self._of_unit for unit in column.units):
                self._add(index)
        for index in by_rate:
            column = self._columns[index]
            instead = {self._of_unit[unit] for unit in column.units if unit in self._of_unit}
            freed = sum(self._columns[other].gpus for other in instead)
            worth = sum(self._columns[other].saving for other in instead)
            if index not in instead and column.gpus <= self._left + freed and column.saving > worth:
                for other in instead:
                    self._drop(other)
                self._add(index)
        return self

    def _add(self, index: int) -> None:
        column = self._columns[index]
        self._left -= column.gpus
        self._of_unit.update(dict.fromkeys(column.units, index))
        self.chosen.add(index)

    def _drop(self, index: int) -> None:
        column = self._columns[index]
        self._left += column.gpus
        for unit in column.units:
            del self._of_unit[unit]
        self.chosen.discard(index)
