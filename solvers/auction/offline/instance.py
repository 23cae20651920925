"""Problem P as data (section 2.2): node-slots with room, and tasks; and the check of plans for it.

The offline optimum uses the tasks of a whole day. A scheduler that decides in batches uses the tasks that
have just arrived, and the remaining room. The check reads the plans only: it shares no code with the solvers.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.compiled import Floats


@dataclass(frozen=True)
class OfferedTask:
    """Bid as input of the solvers."""

    job_id: str
    bid_micros: int
    """Bid b_i."""
    demand: Demand
    options: tuple[VendorOption, ...]
    """Prices q_in and delays h_in; one option without vendor if the task needs none."""
    first_slot: int
    """First slot that a plan may use, before any vendor's delay."""
    last_slot: int
    """Last slot d_i. Both slots are absolute, included, and within the instance's."""


@dataclass(frozen=True)
class Instance:
    """Tasks and the room for them; arrays are over the slots from `first_slot` on."""

    fleet: Fleet
    first_slot: int
    full_costs: Floats
    """Operational cost of a fully used node, in micros, (slots, classes)."""
    free_samples: Floats
    """Free samples, whole numbers, (slots, nodes); 0 for a node that is down."""
    free_gib: Floats
    """Free memory, (slots, nodes)."""
    tasks: Sequence[OfferedTask]

    @property
    def slots(self) -> int:
        return len(self.full_costs)


@dataclass(frozen=True)
class PlannedTask:
    """Admitted task with its vendor and placement (u_i = 1, z_in, x_ikt)."""

    job_id: str
    option: VendorOption
    placement: Placement


def violations(instance: Instance, plans: Sequence[PlannedTask]) -> list[str]:
    """Return the violations of constraints 4a to 4g by plans for an instance; empty without any.

    A node that is down has no room, so 4f finds any plan that uses it.
    """
    return [*broken_plans(instance, plans), *overfull_node_slots(instance, plans)]


def broken_plans(instance: Instance, plans: Sequence[PlannedTask]) -> list[str]:
    """Return the violations of constraints 4a to 4e by single plans."""
    tasks = {task.job_id: task for task in instance.tasks}
    found: list[str] = []
    planned: set[str] = set()
    for plan in plans:
        task = tasks.get(plan.job_id)
        if task is None:
            found.append(f"job {plan.job_id}: the instance has no such task")
            continue
        if plan.job_id in planned:
            found.append(f"job {plan.job_id}: planned more than once")
        planned.add(plan.job_id)
        found += _of_the_plan(instance, task, plan)
    return found


def overfull_node_slots(instance: Instance, plans: Sequence[PlannedTask]) -> list[str]:
    """Return the node-slots that hold more than their room, by constraints 4f and 4g. Tasks and node-slots
    that the instance lacks do not count."""
    tasks = {task.job_id: task for task in instance.tasks}
    found: list[str] = []
    held: dict[tuple[int, int], list[OfferedTask]] = {}
    for plan in plans:
        for slot, row in plan.placement.node_slots():
            if plan.job_id in tasks and not _is_outside(instance, slot, row):
                held.setdefault((slot, row), []).append(tasks[plan.job_id])
    for (slot, row), there in sorted(held.items(), key=lambda node_slot: node_slot[0]):
        node, number = instance.fleet.nodes[row], instance.fleet.class_of_row[row]
        jobs = ", ".join(task.job_id for task in there)
        free_samples = float(instance.free_samples[slot - instance.first_slot, row])
        free_gib = float(instance.free_gib[slot - instance.first_slot, row])
        samples = sum(int(task.demand.samples[number]) for task in there)
        gib = math.fsum(task.demand.memory_gib for task in there)
        if samples > free_samples:
            found.append(
                f"slot {slot}, node {node}: {jobs} train {samples} of {free_samples:g} free samples (4f)"
            )
        if gib > free_gib:
            found.append(f"slot {slot}, node {node}: {jobs} hold {gib:g} of {free_gib:g} free GiB (4g)")
    return found


def welfare_micros(instance: Instance, plans: Sequence[PlannedTask]) -> int:
    """Return objective 4 in whole micros: bids less vendors' prices and operational costs.

    Raises:
        KeyError: the instance lacks the task of a plan.
    """
    tasks = {task.job_id: task for task in instance.tasks}
    total = 0
    for plan in plans:
        task = tasks[plan.job_id]
        total += task.bid_micros - plan.option.price_micros
        for slot, row in plan.placement.node_slots():
            number = instance.fleet.class_of_row[row]
            full_cost = float(instance.full_costs[slot - instance.first_slot, number])
            total -= math.ceil(full_cost * float(task.demand.compute_share[number]))
    return total


def _of_the_plan(instance: Instance, task: OfferedTask, plan: PlannedTask) -> Iterator[str]:
    job, slots = f"job {task.job_id}", plan.placement.slots
    if plan.option not in task.options:
        yield f"{job}: {plan.option} is not one of the {len(task.options)} offered (4a)"
    if len(set(slots)) < len(slots):
        twice = sorted({slot for slot in slots if slots.count(slot) > 1})
        yield f"{job}: runs more than once in slots {twice} (4b)"
    ready_slot = task.first_slot + plan.option.delay_slots
    done = 0
    for slot, row in plan.placement.node_slots():
        if slot < ready_slot:
            yield (
                f"{job}: runs in slot {slot}, but its first is {task.first_slot} and its data is ready after "
                f"{plan.option.delay_slots} more, in slot {ready_slot} (4c)"
            )
        if slot > task.last_slot:
            yield f"{job}: runs in slot {slot}, after its last, {task.last_slot} (4d)"
        if _is_outside(instance, slot, row):
            yield f"{job}: slot {slot}, node row {row} is no node-slot of the instance"
            continue
        samples = int(task.demand.samples[instance.fleet.class_of_row[row]])
        if samples == 0:
            yield f"{job}: cannot run on node {instance.fleet.nodes[row]}, as it does in slot {slot}"
        done += samples
    if done < task.demand.work_samples:
        yield f"{job}: trains {done} of {task.demand.work_samples} samples (4e)"


def _is_outside(instance: Instance, slot: int, row: int) -> bool:
    in_time = instance.first_slot <= slot < instance.first_slot + instance.slots
    return not (in_time and 0 <= row < len(instance.fleet.nodes))


def keep_what_fits(instance: Instance, plans: Iterable[PlannedTask]) -> list[PlannedTask]:
    """Return the plans with positive welfare that do their work and fit besides those of more welfare; ties
    by id.

    The constraints of a solver hold within its tolerances; here they hold exactly, in whole samples and
    quanta.
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
