"""Problem P as printed (Eqs. 4 to 4h), with a variable per task, slot and node: exact, for small sizes.

Equal nodes can be swapped without any change, a symmetry that branch and bound detects only in part;
`offline_optimum` uses `columns.py` for larger instances.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo
from pyomo.contrib.solver.solvers.highs import Highs
from pyomo.core.expr import LinearExpression

from solvers.auction.market.market import Placement
from solvers.auction.market.window import Window
from solvers.auction.offline.columns import solve_by_columns
from solvers.auction.offline.instance import (
    Instance,
    OfferedTask,
    PlannedTask,
    keep_what_fits,
    welfare_micros,
)
from solvers.auction.offline.rounding import greedy_plans
from solvers.auction.offline.solution import OfflineSolution, price, window_of
from solvers.compiled import Ints

LARGEST_COEFFICIENT = 1_000.0
"""Largest coefficient of the objective: HiGHS's absolute tolerances are meant for such numbers."""
BOUND_TOLERANCE = 1e-6
"""Relative error of HiGHS's bound."""

MOST_SCHEDULE_FREE_NODE_SLOTS = 20_000
"""Most tasks x slots of their windows x nodes for problem P as printed. Its solution is exact in the end,
while columns leave the gap between the relaxation and integral plans."""
SCHEDULE_FREE_SHARE = 0.7
"""Share of the time; the rest is for columns, if the gap is still open."""


def solve_schedule_free(instance: Instance, time_limit_s: float, relative_gap: float) -> OfflineSolution:
    """Return the best plans that HiGHS finds in time, checked, and its proven bound.

    If greedy plans are better than those of HiGHS, because time is short, they are returned.

    Args:
        time_limit_s: limit for building and solving the model. HiGHS may exceed it by a part of its last
            step.
        relative_gap: (bound - welfare) / welfare at which to stop.
    """
    started_s = time.perf_counter()
    tasks = [modelled for task in instance.tasks if (modelled := _modelled(instance, task)) is not None]
    if not tasks:
        return OfflineSolution.of(instance, (), 0.0, relative_gap, time.perf_counter() - started_s)
    scale = max(modelled.task.bid_micros for modelled in tasks) / LARGEST_COEFFICIENT
    model = _model(instance, tasks, scale)
    solver = Highs()
    solver.config.load_solutions = False
    solver.config.raise_exception_on_nonoptimal_result = False
    solver.config.rel_gap = relative_gap
    solver.set_instance(model)
    for change in solver.config.auto_updates:
        # The model does not change, and a check for changes would take long.
        solver.config.auto_updates[change] = False
    solver.config.time_limit = max(time_limit_s - (time.perf_counter() - started_s), 0.0)
    results = solver.solve(model)
    bound_micros = math.inf
    if results.objective_bound is not None and math.isfinite(results.objective_bound):
        off = BOUND_TOLERANCE * max(1.0, abs(results.objective_bound))
        bound_micros = (results.objective_bound + off) * scale
    plans: list[PlannedTask] = []
    if results.incumbent_objective is not None:
        results.solution_loader.load_vars()
        values = np.fromiter((variable.value for variable in model.x.values()), np.float64) > 0.5
        plans = keep_what_fits(instance, _plans(instance, tasks, values))
    plans = max(plans, greedy_plans(instance), key=lambda them: welfare_micros(instance, them))
    return OfflineSolution.of(instance, plans, bound_micros, relative_gap, time.perf_counter() - started_s)


@dataclass(frozen=True)
class _ModelledTask:
    """Possibly profitable task, with variables u_i, z_in, and x_ikt of the node-slots that it may use."""

    task: OfferedTask
    window: Window
    columns: Ints
    """Columns of the instance's slots, ascending, (node-slots,)."""
    rows: Ints
    """Rows of the nodes, (node-slots,)."""

    @property
    def variables(self) -> int:
        """Number of variables; z_in of a task with one option is u_i itself."""
        options = len(self.window.options)
        return 1 + (options if options > 1 else 0) + self.columns.size


def _modelled(instance: Instance, task: OfferedTask) -> _ModelledTask | None:
    window = window_of(instance, task)
    if window is None:
        return None
    demand = task.demand
    class_of_row = np.array(instance.fleet.class_of_row, np.int64)
    samples = demand.samples[class_of_row]
    within = window.columns
    room = (
        (samples > 0)
        & (instance.free_samples[within] >= samples)
        & (instance.free_gib[within] >= demand.memory_gib)
    )
    room[: window.delays_slots[0]] = False
    costs = np.full(window.operational.shape, np.inf)
    for index, node_class in enumerate(instance.fleet.classes):
        there = room[:, node_class.start : node_class.stop].any(axis=1)
        costs[there, index] = window.operational[there, index]
    cheapest = price(task, window, costs)
    if cheapest is None or task.bid_micros <= cheapest.bound:
        return None
    columns, rows = np.nonzero(room)
    return _ModelledTask(task, window, columns + within.start, rows)


def _model(instance: Instance, tasks: Sequence[_ModelledTask], scale: float) -> pyo.ConcreteModel:
    """Build problem P, scaled: rows in parts of work and room, the objective in units of `scale` micros."""
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(sum(modelled.variables for modelled in tasks)), domain=pyo.Binary)
    model.rows = pyo.ConstraintList()
    variables = list(model.x.values())
    gains: list[float] = []
    used: dict[tuple[int, int], list[tuple[Any, float, float]]] = {}
    for modelled in tasks:
        mine = variables[len(gains) : len(gains) + modelled.variables]
        gains += _gains(instance, modelled, scale)
        node_slots = mine[-modelled.columns.size :]
        _add_task_rows(model.rows, instance, modelled, mine[0], mine[1 : -modelled.columns.size], node_slots)
        demand = modelled.task.demand
        for column, row, x in zip(modelled.columns.tolist(), modelled.rows.tolist(), node_slots, strict=True):
            samples = float(demand.samples[instance.fleet.class_of_row[row]])
            used.setdefault((column, row), []).append((x, samples, demand.memory_gib))
    for node_slot, users in used.items():
        present = [x for x, _, _ in users]
        for used_here, free in (
            ([samples for _, samples, _ in users], float(instance.free_samples[node_slot])),
            ([gib for _, _, gib in users], float(instance.free_gib[node_slot])),
        ):
            if math.fsum(used_here) > free:
                model.rows.add((None, _sum([part / free for part in used_here], present), 1.0))  # 4f, 4g
    model.welfare = pyo.Objective(expr=_sum(gains, variables), sense=pyo.maximize)
    return model


def _gains(instance: Instance, modelled: _ModelledTask, scale: float) -> list[float]:
    """Return the coefficient of each variable in objective 4."""
    window, task = modelled.window, modelled.task
    classes = np.array(instance.fleet.class_of_row, np.int64)[modelled.rows]
    costs = window.operational[modelled.columns - window.columns.start, classes] / scale
    prices = window.prices_micros / scale
    admitted = task.bid_micros / scale
    if len(prices) == 1:
        return [admitted - float(prices[0]), *(-costs).tolist()]
    return [admitted, *(-prices).tolist(), *(-costs).tolist()]


def _add_task_rows(
    rows: pyo.ConstraintList,
    instance: Instance,
    modelled: _ModelledTask,
    admitted: Any,
    vendors: Sequence[Any],
    node_slots: Sequence[Any],
) -> None:
    demand, window = modelled.task.demand, modelled.window
    samples = demand.samples[np.array(instance.fleet.class_of_row, np.int64)[modelled.rows]]
    # In multiples of the common divisor of all speeds: with one speed, whole slots.
    step = int(np.gcd.reduce(samples))
    work = -(-demand.work_samples // step)
    rows.add((0.0, _sum([*(samples / (step * work)).tolist(), -1.0], [*node_slots, admitted]), None))  # 4e
    if vendors:
        rows.add((0.0, _sum([1.0] * len(vendors) + [-1.0], [*vendors, admitted]), 0.0))  # 4a
    bounds = np.flatnonzero(np.diff(modelled.columns, prepend=-1, append=-2)).tolist()
    for start, stop in itertools.pairwise(bounds):
        ahead = int(modelled.columns[start]) - window.columns.start
        ready = [z for z, delay in zip(vendors, window.delays_slots, strict=False) if delay <= ahead]
        there = ready or [admitted]
        rows.add(
            (None, _sum([1.0] * (stop - start) + [-1.0] * len(there), [*node_slots[start:stop], *there]), 0.0)
        )  # 4b, and 4c: a slot that only some vendors leave free requires one of them


def _plans(instance: Instance, tasks: Sequence[_ModelledTask], chosen: Any) -> Iterator[PlannedTask]:
    """Yield the plans of the admitted tasks, each with the cheapest vendor that is in time."""
    offset = 0
    for modelled in tasks:
        admitted = chosen[offset]
        offset += modelled.variables
        node_slots = np.flatnonzero(chosen[offset - modelled.columns.size : offset])
        if not admitted or not node_slots.size:
            continue
        columns = modelled.columns[node_slots]
        window = modelled.window
        in_time = np.flatnonzero(window.delays_slots <= columns[0] - window.columns.start)
        yield PlannedTask(
            job_id=modelled.task.job_id,
            # Of undominated options, slower ones are cheaper.
            option=window.options[int(in_time[-1])],
            placement=Placement(
                tuple((columns + instance.first_slot).tolist()), tuple(modelled.rows[node_slots].tolist())
            ),
        )


def _sum(coefficients: Sequence[float], variables: Sequence[Any]) -> LinearExpression:
    return LinearExpression(linear_coefs=list(coefficients), linear_vars=list(variables))


def offline_optimum(instance: Instance, time_limit_s: float, relative_gap: float = 0.01) -> OfflineSolution:
    """Return the best plans and the least bound found for an instance, by the form that suits its size.

    Args:
        time_limit_s: total limit.
        relative_gap: (bound - welfare) / welfare at which to stop.
    """
    started_s = time.perf_counter()
    nodes = len(instance.fleet.nodes)
    node_slots = sum(nodes * (task.last_slot - task.first_slot + 1) for task in instance.tasks)
    if node_slots > MOST_SCHEDULE_FREE_NODE_SLOTS:
        return solve_by_columns(instance, time_limit_s, relative_gap)
    exact = solve_schedule_free(instance, SCHEDULE_FREE_SHARE * time_limit_s, relative_gap)
    if exact.status == "optimal":
        return exact
    left_s = time_limit_s - (time.perf_counter() - started_s)
    by_columns = solve_by_columns(instance, left_s, relative_gap)
    better = max(exact, by_columns, key=lambda solution: solution.welfare_micros)
    bound_micros = min(exact.bound_micros, by_columns.bound_micros)
    seconds = time.perf_counter() - started_s
    return OfflineSolution.of(instance, better.plans, bound_micros, relative_gap, seconds)
