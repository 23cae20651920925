"""Exact model of the best servers to give back: the fewest preempted jobs, then the least collateral damage.
It is a reference, slow to import and to solve.
"""

import math

import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import SolutionStatus
from pyomo.contrib.solver.solvers.highs import Highs

from solvers.elastic.lent import Lent, Reclaim, reclaim_of


class ReclaimUnsolvedError(Exception):
    """The optimum was not found within the time limit."""


def reclaim_optimum(lent: Lent, count: int, time_limit_s: float = math.inf) -> Reclaim:
    """Return the optimal choice of `count` servers.

    Args:
        time_limit_s: limit of each of the two solves.

    Raises:
        ValueError: there are fewer servers.
        ReclaimUnsolvedError: a solve exceeded the time limit.
    """
    if not 0 <= count <= len(lent.servers):
        raise ValueError(f"{count} servers are requested, and {len(lent.servers)} are on loan")
    if not lent.jobs or count in (0, len(lent.servers)):
        return reclaim_of(lent, sorted(server.server_id for server in lent.servers)[:count])
    model = _model(lent, count)
    model.fewest = pyo.Objective(expr=sum(model.preempted.values()))
    fewest = round(_solved(model, time_limit_s))
    model.fewest.deactivate()
    model.no_more = pyo.Constraint(expr=sum(model.preempted.values()) <= fewest)
    model.damage = pyo.Objective(expr=_damage_gpus(lent, model))
    _solved(model, time_limit_s)
    return reclaim_of(lent, [server_id for server_id, gone in model.gone.items() if gone.value > 0.5])


def _model(lent: Lent, count: int) -> pyo.ConcreteModel:
    """Build the model of the servers given back, and of the jobs preempted by that."""
    model = pyo.ConcreteModel()
    model.gone = pyo.Var([server.server_id for server in lent.servers], domain=pyo.Binary)
    model.preempted = pyo.Var([job.job_id for job in lent.jobs], domain=pyo.Binary)
    model.asked = pyo.Constraint(expr=sum(model.gone.values()) == count)
    model.rules = pyo.ConstraintList()
    for job in lent.jobs:
        preempted = model.preempted[job.job_id]
        total = sum(job.workers.values())
        spare = total - job.min_workers
        counted = {each: workers for each, workers in job.workers.items() if each in model.gone}
        lost = 0
        for server_id, workers in counted.items():
            lost += workers * model.gone[server_id]
            if workers > spare:
                model.rules.add(model.gone[server_id] <= preempted)
        if sum(counted.values()) > spare:
            model.rules.add(lost <= spare + (total - spare) * preempted)
    return model


def _damage_gpus(lent: Lent, model: pyo.ConcreteModel) -> object:
    """Return the GPUs that preempted jobs vacate on servers that stay."""
    model.vacated = pyo.VarList(domain=pyo.NonNegativeReals)
    damage_gpus = 0
    for job in lent.jobs:
        for server_id, workers in job.all_workers().items():
            vacated = model.preempted[job.job_id]
            if server_id in model.gone:
                vacated = model.vacated.add()
                model.rules.add(vacated >= model.preempted[job.job_id] - model.gone[server_id])
            damage_gpus += workers * job.gpus_per_worker * vacated
    return damage_gpus


def _solved(model: pyo.ConcreteModel, time_limit_s: float) -> float:
    """Solve the model and return its least objective."""
    solver = Highs()
    solver.config.rel_gap = 0.0
    solver.config.abs_gap = 0.0
    solver.config.load_solutions = False
    solver.config.raise_exception_on_nonoptimal_result = False
    if math.isfinite(time_limit_s):
        solver.config.time_limit = time_limit_s
    results = solver.solve(model)
    if results.solution_status != SolutionStatus.optimal:
        raise ReclaimUnsolvedError(f"the best servers to give back were not found within {time_limit_s} s")
    results.solution_loader.load_vars()
    return float(results.incumbent_objective)
