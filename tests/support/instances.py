"""Small instances of problem P and their optimum by brute force, for the tests of what solves it."""

import itertools
import random
from collections.abc import Iterator

import numpy as np

from solvers.auction.market.fleet import Fleet
from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.offline.instance import Instance, OfferedTask, PlannedTask, violations, welfare_micros
from tests.support.markets import demand, fleet

FIRST_SLOT = 3
NO_VENDOR = (VendorOption(None, 0, 0),)


def empty_instance(
    of: Fleet, slots: int, tasks: list[OfferedTask], full_costs: list[float] | None = None
) -> Instance:
    """Every node empty; a full node costs `full_costs` per class, in every slot the same."""
    samples = [of.classes[index].capacity_samples for index in of.class_of_row]
    gib = [of.classes[index].capacity_gib for index in of.class_of_row]
    costs = full_costs or [0.0] * len(of.classes)
    return Instance(
        fleet=of,
        first_slot=FIRST_SLOT,
        full_costs=np.tile(np.array(costs), (slots, 1)),
        free_samples=np.tile(np.array(samples), (slots, 1)),
        free_gib=np.tile(np.array(gib), (slots, 1)),
        tasks=tasks,
    )


def random_instance(
    rng: random.Random, tasks: int, nodes: int = 2, slots: int = 3, is_empty: bool = False
) -> Instance:
    """Up to two classes of up to `nodes` nodes, with room taken here and there unless `is_empty`."""
    shapes = [
        (rng.randint(1, nodes), float(rng.randint(6, 12)), float(rng.randint(4, 8)))
        for _ in range(rng.randint(1, 2))
    ]
    of = fleet(*shapes)
    instance = empty_instance(of, slots, [random_task(rng, of, n, slots) for n in range(tasks)])
    instance.full_costs[:] = [[rng.uniform(0, 9) for _ in shapes] for _ in range(slots)]
    if not is_empty:
        for cell in itertools.product(range(slots), range(len(of.nodes))):
            instance.free_samples[cell] = rng.randint(0, int(instance.free_samples[cell]))
            instance.free_gib[cell] = rng.randint(0, int(instance.free_gib[cell]))
    return instance


def random_task(rng: random.Random, of: Fleet, number: int, slots: int) -> OfferedTask:
    """A task that may be done in time, or may not."""
    first = rng.randrange(slots)
    options = tuple(
        VendorOption(f"vendor{vendor}", rng.randint(0, 6), rng.randint(0, 2))
        for vendor in range(rng.randint(1, 3))
    )
    return OfferedTask(
        job_id=f"j{number}",
        bid_micros=rng.randint(0, 40),
        demand=demand(
            of,
            rng.randint(1, 10),
            [rng.randint(0 if index else 1, 6) for index in range(len(of.classes))],
            float(rng.randint(1, 4)),
        ),
        options=NO_VENDOR if rng.random() < 0.5 else options,
        first_slot=FIRST_SLOT + first,
        last_slot=FIRST_SLOT + rng.randint(first, slots - 1),
    )


def every_plan(instance: Instance, task: OfferedTask) -> Iterator[PlannedTask]:
    """All plans of a task that are feasible by themselves and have no slot to spare."""
    slots = range(task.first_slot, task.last_slot + 1)
    rows = [None, *range(len(instance.fleet.nodes))]
    for picks in itertools.product(rows, repeat=len(slots)):
        taken = [(slot, row) for slot, row in zip(slots, picks, strict=True) if row is not None]
        samples = [int(task.demand.samples[instance.fleet.class_of_row[row]]) for _, row in taken]
        if not taken or sum(samples) - min(samples) >= task.demand.work_samples:
            continue
        placement = Placement(tuple(slot for slot, _ in taken), tuple(row for _, row in taken))
        for option in task.options:
            plan = PlannedTask(task.job_id, option, placement)
            if not violations(instance, [plan]):
                yield plan


def brute_force_micros(instance: Instance) -> int:
    """The welfare of the best plans, by trying them all."""
    plans = [
        [
            (worth, plan)
            for plan in every_plan(instance, task)
            if (worth := welfare_micros(instance, [plan])) > 0
        ]
        for task in instance.tasks
    ]
    hopes = [max((worth for worth, _ in of_task), default=0) for of_task in plans]
    best = 0

    def extend(number: int, chosen: list[PlannedTask], worth: int) -> None:
        nonlocal best
        best = max(best, worth)
        if number == len(plans) or worth + sum(hopes[number:]) <= best:
            return
        for gain, plan in sorted(plans[number], key=lambda pair: -pair[0]):
            if not violations(instance, [*chosen, plan]):
                extend(number + 1, [*chosen, plan], worth + gain)
        extend(number + 1, chosen, worth)

    extend(0, [], 0)
    return best
