"""Titan (section 5.1): one mixed-integer program per slot, over the bids that arrived in it and the free
room.

With plenty of room, columns find plans and prove them good enough; if a gap is left, the program is solved. A
variable per task, slot and node is too many for a large zone, where a task may use any of a hundred equal
nodes. So for each slot and class, the program has only the nodes with the most room, as many as the batch
could fill.
"""

import math
import time

import numpy as np

from schemas.auction.batches import (
    MAX_BOUND_MICROS,
    BatchProblem,
    BatchSolution,
    OfferedBid,
    OfferedNodes,
    SolvedPlan,
)
from schemas.base import HOURS_PER_DAY
from schemas.cells import Tariff
from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import GIB_QUANTUM, Fleet, NodeClass
from solvers.auction.market.window import VendorOption
from solvers.auction.offline.columns import solve_by_columns
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.auction.offline.schedule_free import solve_schedule_free
from solvers.auction.offline.solution import OfflineSolution
from solvers.compiled import Bools, Floats, Ints

ROOM_TO_DEMAND = 1.3
"""Room of the offered nodes over the demand of all tasks of the batch in a slot."""
MAX_VARIABLES = 50_000
"""Most variables of tasks in slots on nodes. If there are more, fewer nodes are offered."""
COLUMNS_SHARE = 0.25
"""Share of the time for columns; the rest is for the program, if the gap is still open."""
_SHRINK = 0.8
_COSTS_APART = Tariff(name="apart", micros_per_kwh=(0,) * HOURS_PER_DAY)
"""Placeholder tariff: a problem states costs per slot."""


def solve_batch(problem: BatchProblem, time_limit_s: float) -> BatchSolution:
    """Return the best plans found for a batch within the time."""
    instance = instance_of(problem)
    solution = _solve(instance, time_limit_s, problem.relative_gap)
    nodes = instance.fleet.nodes
    return BatchSolution(
        status=solution.status,
        plans=tuple(
            SolvedPlan(
                job_id=plan.job_id,
                node_slots=tuple((slot, nodes[row]) for slot, row in plan.placement.node_slots()),
            )
            for plan in solution.plans
        ),
        bound_micros=min(solution.bound_micros, MAX_BOUND_MICROS),
    )


def smallest_batch() -> BatchProblem:
    """Return a problem of two bids for one node-slot, which runs every step of a solve."""
    nodes = OfferedNodes(
        nodes=("node",),
        capacity_samples=1,
        capacity_quanta=1,
        full_cost_micros=(0.0,),
        free_samples=((1,),),
        free_quanta=((1,),),
    )
    bids = tuple(
        OfferedBid(
            job_id=f"job-{number}",
            bid_micros=1,
            work_samples=1,
            slot_samples=(1,),
            memory_quanta=1,
            vendor=None,
            vendor_micros=0,
            ready_slot=0,
            last_slot=0,
        )
        for number in range(2)
    )
    return BatchProblem(relative_gap=0.0, first_slot=0, classes=(nodes,), bids=bids)


def instance_of(problem: BatchProblem) -> Instance:
    """Return the problem as an instance; nodes in the order of the problem's classes."""
    fleet = _fleet(problem)
    return Instance(
        fleet=fleet,
        first_slot=problem.first_slot,
        full_costs=np.stack([offered.full_cost_micros for offered in problem.classes], axis=1),
        free_samples=np.hstack([np.array(offered.free_samples, np.float64) for offered in problem.classes]),
        free_gib=np.hstack([np.array(offered.free_quanta) / GIB_QUANTUM for offered in problem.classes]),
        tasks=[_task(bid, fleet) for bid in problem.bids],
    )


def pruned(instance: Instance, max_variables: int) -> Instance:
    """Return the instance with only the nodes with the most room of each slot and class. They hold at least
    `ROOM_TO_DEMAND` times the batch's demand there. If this makes too many variables, there are fewer nodes,
    but at least one."""
    ratio = ROOM_TO_DEMAND
    kept = _roomiest(instance, ratio)
    while _variables(instance, kept) > max_variables and ratio > _SHRINK**40:
        ratio *= _SHRINK
        kept = _roomiest(instance, ratio)
    return Instance(
        fleet=instance.fleet,
        first_slot=instance.first_slot,
        full_costs=instance.full_costs,
        free_samples=np.where(kept, instance.free_samples, 0.0),
        free_gib=np.where(kept, instance.free_gib, 0.0),
        tasks=instance.tasks,
    )


def _solve(instance: Instance, time_limit_s: float, relative_gap: float) -> OfflineSolution:
    """Return the better solution of columns and the program; it runs only if columns leave the gap open."""
    started_s = time.perf_counter()
    by_columns = solve_by_columns(instance, COLUMNS_SHARE * time_limit_s, relative_gap)
    if by_columns.status == "optimal":
        return by_columns
    part = pruned(instance, MAX_VARIABLES)
    left_s = time_limit_s - (time.perf_counter() - started_s)
    program = solve_schedule_free(part, left_s, relative_gap)
    better = max(by_columns, program, key=lambda solution: solution.welfare_micros)
    # A bound for a part of the room is a bound for all room only if no node was left out.
    is_whole = np.array_equal(part.free_samples, instance.free_samples)
    bound_micros = min(by_columns.bound_micros, program.bound_micros if is_whole else math.inf)
    seconds = time.perf_counter() - started_s
    return OfflineSolution.of(instance, better.plans, bound_micros, relative_gap, seconds)


def _fleet(problem: BatchProblem) -> Fleet:
    nodes: list[str] = []
    classes: list[NodeClass] = []
    for index, offered in enumerate(problem.classes):
        classes.append(
            NodeClass(
                gpu_type=f"class-{index}",
                tariff=_COSTS_APART,
                power_kw=0.0,
                capacity_samples=float(offered.capacity_samples),
                capacity_gib=offered.capacity_quanta / GIB_QUANTUM,
                start=len(nodes),
                stop=len(nodes) + len(offered.nodes),
            )
        )
        nodes += offered.nodes
    return Fleet(tuple(nodes), tuple(classes))


def _task(bid: OfferedBid, fleet: Fleet) -> OfferedTask:
    samples = np.array(bid.slot_samples, np.int64)
    return OfferedTask(
        job_id=bid.job_id,
        bid_micros=bid.bid_micros,
        demand=Demand.sized(bid.work_samples, samples, bid.memory_quanta / GIB_QUANTUM, fleet),
        options=(VendorOption(bid.vendor, bid.vendor_micros, 0),),
        first_slot=bid.ready_slot,
        last_slot=bid.last_slot,
    )


def _roomiest(instance: Instance, ratio: float) -> Bools:
    """Select the nodes with the most room, by the scarcer resource, (slots, nodes); ties by row."""
    kept = np.zeros(instance.free_samples.shape, np.bool_)
    for index, node_class in enumerate(instance.fleet.classes):
        rows = slice(node_class.start, node_class.stop)
        samples, gib = instance.free_samples[:, rows], instance.free_gib[:, rows]
        scarcer = np.minimum(samples / node_class.capacity_samples, gib / node_class.capacity_gib)
        order = np.argsort(-scarcer, axis=1, kind="stable")
        demanded_samples, demanded_gib = _demanded(instance, index)
        # A node is kept while those before it hold too little.
        enough = (_held_before(samples, order) >= ratio * demanded_samples[:, None]) & (
            _held_before(gib, order) >= ratio * demanded_gib[:, None]
        )
        enough[:, 0] = False
        np.put_along_axis(kept[:, rows], order, ~enough, axis=1)
    return kept


def _held_before(room: Floats, order: Ints) -> Floats:
    """Return the total room of the nodes before each, in the given order."""
    ordered = np.take_along_axis(room, order, axis=1)
    return np.cumsum(ordered, axis=1) - ordered


def _demanded(instance: Instance, index: int) -> tuple[Floats, Floats]:
    """Return the samples and GiB that all possible tasks of a class take there together, (slots,) each."""
    samples, gib = np.zeros(instance.slots), np.zeros(instance.slots)
    for task in instance.tasks:
        if task.demand.samples[index] > 0:
            within = slice(task.first_slot - instance.first_slot, task.last_slot - instance.first_slot + 1)
            samples[within] += task.demand.samples[index]
            gib[within] += task.demand.memory_gib
    return samples, gib


def _variables(instance: Instance, kept: Bools) -> int:
    """Count the variables of tasks in slots on the kept nodes."""
    offered = kept & (instance.free_samples > 0)
    total = 0
    for index, node_class in enumerate(instance.fleet.classes):
        nodes = offered[:, node_class.start : node_class.stop].sum(axis=1)
        for task in instance.tasks:
            if task.demand.samples[index] > 0:
                first, last = task.first_slot - instance.first_slot, task.last_slot - instance.first_slot
                total += int(nodes[first : last + 1].sum())
    return total
