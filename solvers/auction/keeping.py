"""Plans that fit together exactly, out of plans that may not."""

from collections.abc import Iterable

import numpy as np

from solvers.auction.feasibility import welfare_micros
from solvers.auction.instance import Instance, PlannedTask


def keep_what_fits(instance: Instance, plans: Iterable[PlannedTask]) -> list[PlannedTask]:
    """The plans that bring something, do their work and find room beside those that bring more; ties by id.

    A solver's rows hold to within its tolerances, and whole samples and GiB hold or do not.
    """
    worth = [(welfare_micros(instance, [plan]), plan) for plan in plans]
    demands = {task.job_id: task.demand for task in instance.tasks}
    free_samples, free_gib = instance.free_samples.copy(), instance.free_gib.copy()
    class_of_row = np.array(instance.fleet.class_of_row, np.int64)
    kept: list[PlannedTask] = []
    for welfare, plan in sorted(worth, key=lambda pair: (-pair[0], pair[1].job_id)):
        demand = demands[plan.job_id]
        columns = np.array(plan.placement.slots, np.int64) - instance.first_slot
        rows = np.array(plan.placement.rows, np.int64)
        samples = demand.samples[class_of_row[rows]]
        fits = (free_samples[columns, rows] >= samples).all() and (
            free_gib[columns, rows] >= demand.memory_gib
        ).all()
        if welfare > 0 and fits and samples.sum() >= demand.work_samples:
            free_samples[columns, rows] -= samples
            free_gib[columns, rows] -= demand.memory_gib
            kept.append(plan)
    return kept
