"""Offline optimum of problem P: the welfare of the best plans in hindsight, a reference of the auction."""

import time

from solvers.auction.offline.columns import solve_by_columns
from solvers.auction.offline.instance import Instance
from solvers.auction.offline.schedule_free import solve_schedule_free
from solvers.auction.offline.solution import Solution

MOST_SCHEDULE_FREE_NODE_SLOTS = 20_000
"""Most tasks x slots of their windows x nodes for problem P as printed. Its solution is exact in the end,
while columns leave the gap between the relaxation and integral plans."""
SCHEDULE_FREE_SHARE = 0.7
"""Share of the time; the rest is for columns, if the gap is still open."""


def offline_optimum(instance: Instance, time_limit_s: float, relative_gap: float = 0.01) -> Solution:
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
    return Solution.of(instance, better.plans, bound_micros, relative_gap, seconds)
