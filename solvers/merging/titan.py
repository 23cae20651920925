"""Titan (Gao et al., SoCC '22) without merging: an integer program that equalises slowdowns.

The program is that of its public simulator (gaow0007/TitanSched, `alg/scheduler/titan.py` with the weights
"FAIR"), as far as it concerns single jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyomo.environ as pyo
from pyomo.contrib.solver.solvers.highs import Highs
from pyomo.core.expr import LinearExpression

from solvers.merging.scheme_interface import Contender, size_within


@dataclass(frozen=True)
class Titan:
    """Allocation that minimises the sum of slowdowns: each job's remaining time over that with its fair
    share.

    Each of N jobs has a fair share of 1/N of the GPUs, rounded down, but at least one. A remaining time
    counts as at least one interval, so that jobs that end within a round are not sped up in vain. Every job
    of the program gets GPUs. If there are too few, the jobs with the least remaining work are in the program,
    and the others wait. Titan has them all in it and makes waiting more costly than anything else, with the
    same result.

    A size that is not faster than a smaller one, by that count, is left out of the program. It is solved to a
    gap of `relative_gap`, or stopped after `time_limit_s`; without a solution by then, jobs keep their GPUs.
    Only a solve that is not stopped gives the same result on every machine.
    """

    interval_s: float = 120.0
    time_limit_s: float = 30.0
    relative_gap: float = 1e-4

    def allocate(self, jobs: Sequence[Contender], gpus: int, time_s: float) -> dict[str, int]:
        """See `Scheme`."""
        del time_s
        served = _shortest_that_fit(jobs, gpus)
        menus = {job.job_id: self.slowdowns(job, gpus // len(served)) for job in served}
        best = {job_id: max(menu) for job_id, menu in menus.items()}
        if sum(best.values()) <= gpus:
            return best
        return self._solved(menus, gpus) or _kept(served, gpus)

    def slowdowns(self, job: Contender, fair_gpus: int) -> dict[int, float]:
        """Return the slowdown against the fair share by useful size, ascending."""
        fair_s = max(job.remaining_s[size_within(job.remaining_s, fair_gpus)], self.interval_s)
        found: dict[int, float] = {}
        for size, remaining_s in job.remaining_s.items():
            slowdown = max(remaining_s, self.interval_s) / fair_s
            if not found or slowdown < min(found.values()):
                found[size] = slowdown
        return found

    def _solved(self, menus: Mapping[str, Mapping[int, float]], gpus: int) -> dict[str, int]:
        """Return the sizes by job; empty if no solution was found in time."""
        choices = [(job_id, size) for job_id, menu in menus.items() for size in menu]
        model = pyo.ConcreteModel()
        model.x = pyo.Var(range(len(choices)), domain=pyo.Binary)
        variables = list(model.x.values())
        model.one_size = pyo.ConstraintList()
        start = 0
        for menu in menus.values():
            mine = variables[start : start + len(menu)]
            model.one_size.add((1.0, LinearExpression(linear_coefs=[1.0] * len(mine), linear_vars=mine), 1.0))
            start += len(menu)
        used = LinearExpression(linear_coefs=[float(size) for _, size in choices], linear_vars=variables)
        model.room = pyo.Constraint(expr=(None, used, float(gpus)))
        slowdowns = [menus[job_id][size] for job_id, size in choices]
        model.slowdown = pyo.Objective(
            expr=LinearExpression(linear_coefs=slowdowns, linear_vars=variables), sense=pyo.minimize
        )
        solver = Highs()
        solver.config.load_solutions = False
        solver.config.raise_exception_on_nonoptimal_result = False
        solver.config.rel_gap = self.relative_gap
        solver.config.time_limit = self.time_limit_s
        solver.config.threads = 1
        results = solver.solve(model)
        if results.incumbent_objective is None:
            return {}
        results.solution_loader.load_vars()
        return {job_id: size for (job_id, size), x in zip(choices, variables, strict=True) if x.value > 0.5}


def _shortest_that_fit(jobs: Sequence[Contender], gpus: int) -> list[Contender]:
    """Return as many jobs as fit at their smallest size, those with the least remaining time at it first."""
    served = []
    left = gpus
    for job in sorted(jobs, key=lambda job: (next(iter(job.remaining_s.values())), job.arrival)):
        smallest = next(iter(job.remaining_s))
        if smallest <= left:
            served.append(job)
            left -= smallest
    return served


def _kept(jobs: Sequence[Contender], gpus: int) -> dict[str, int]:
    """Return the present sizes of jobs, as far as they fit."""
    kept: dict[str, int] = {}
    for job in jobs:
        if job.gpus in job.remaining_s and sum(kept.values()) + job.gpus <= gpus:
            kept[job.job_id] = job.gpus
    return kept
