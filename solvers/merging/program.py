"""Integer program of the task merger (Eqs. 8 to 13), as a Pyomo model that HiGHS solves.

A column is a choice: a number of GPUs for one unit, or for two merged ones. Each unit is in at most one
column, and waits if it is in none. These are constraints 9 and 10 with erratum Y2: a waiting unit has a = 0,
and does not count as running.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pyomo.environ as pyo
from pyomo.contrib.appsi.base import TerminationCondition
from pyomo.contrib.appsi.solvers.highs import Highs
from pyomo.core.expr import LinearExpression


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
    taken = LinearExpression(linear_coefs=[column.gpus for column in columns], linear_vars=variables)
    model.capacity = pyo.Constraint(rule=(None, taken, gpus))
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
