"""Integral plans on nodes: greedy plans, then large fractions of a relaxation, then local improvements.

Plans on classes of nodes are converted to plans on nodes task by task, or by vector packing.
"""

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import GIB_QUANTUM
from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.offline.instance import Instance, OfferedTask, PlannedTask
from solvers.auction.offline.master import PlanColumn
from solvers.auction.offline.relaxation import CandidateTask, Relaxation, Relaxed
from solvers.compiled import Floats, Ints

Size = tuple[int, int]
"""Samples and memory quanta."""

MOST_STEPS = 3_000
"""Most steps of the search for one slot and class; beyond it, a packing counts as not found."""

THRESHOLDS = (0.999, 0.7, 0.5, math.inf)
"""Fractions of the relaxation from which on plans are placed first, with one attempt per threshold."""
SPANS_SLOTS = (2, 4, 8, 16)
"""Spans in slots. A neighbour releases most tasks that run within a span and plans them again."""
GIVEN_UP = 0.7
NOISE = 0.2
"""Deviation of the logarithm of the gains by which a neighbour orders its tasks."""


def pack(items: Sequence[Size], nodes: Sequence[Size]) -> list[int] | None:
    """Return a node for each item such that all nodes have enough room; None if no packing was found.

    The largest item goes first, to the first node with room (first fit decreasing). If that fails, a
    depth-first search continues for `MOST_STEPS`. Of nodes with equal room, one is tried.
    """
    most = [max(node[part] for node in nodes) or 1 for part in (0, 1)] if nodes else [1, 1]
    order = sorted(
        range(len(items)), key=lambda item: (-max(items[item][0] / most[0], items[item][1] / most[1]), item)
    )
    left = [list(node) for node in nodes]
    where = [-1] * len(items)
    next_node = [0] * len(items)
    depth = steps = 0
    while depth < len(order):
        item = order[depth]
        samples, quanta = items[item]
        if where[item] >= 0:
            left[where[item]][0] += samples
            left[where[item]][1] += quanta
            where[item] = -1
        steps += 1
        found = -1
        for node in range(next_node[depth], len(left)):
            room = left[node]
            if room[0] >= samples and room[1] >= quanta and room not in left[:node]:
                found = node
                break
        if found < 0 or steps > MOST_STEPS:
            if depth == 0 or steps > MOST_STEPS:
                return None
            next_node[depth] = 0
            depth -= 1
            continue
        left[found][0] -= samples
        left[found][1] -= quanta
        where[item] = found
        next_node[depth] = found + 1
        depth += 1
        if depth < len(order):
            next_node[depth] = 0
    return where


@dataclass(frozen=True)
class _Placed:
    """Plan of a task by classes."""

    option: VendorOption
    columns: Ints
    classes: Ints
    value_micros: int


class PlacedTasks:
    """Room of an instance with placed tasks. The tasks of a slot are packed again where that helps."""

    def __init__(self, instance: Instance) -> None:
        self.value_micros = 0
        """Total value of the placed plans."""
        self._instance = instance
        self._free_samples = np.floor(instance.free_samples).astype(np.int64)
        self._free_quanta = np.floor(instance.free_gib * GIB_QUANTUM).astype(np.int64)
        self._rows: dict[tuple[int, int], dict[int, int]] = {}
        """Row of each task, by column and class, and by the index of the task."""
        self._placed: dict[int, _Placed] = {}
        """Placed plans, by the index of the task."""

    def copy(self) -> "PlacedTasks":
        copy = PlacedTasks(self._instance)
        copy.value_micros = self.value_micros
        copy._free_samples, copy._free_quanta = self._free_samples.copy(), self._free_quanta.copy()
        copy._rows = {place: dict(rows) for place, rows in self._rows.items()}
        copy._placed = dict(self._placed)
        return copy

    def holds(self, task: int) -> bool:
        """Return whether a task has a plan."""
        return task in self._placed

    def running(self, first: int, stop: int) -> list[int]:
        """Return the tasks that run in some of the columns from `first` to before `stop`, ascending."""
        return sorted(
            {task for (column, _), rows in self._rows.items() if first <= column < stop for task in rows}
        )

    def barred(self, task: OfferedTask, columns: slice) -> Floats:
        """Return 0 where some node has room for a slot of the task, else infinity, (slots, classes)."""
        demand, fleet = task.demand, self._instance.fleet
        quanta = _quanta(demand)
        barred = np.full((columns.stop - columns.start, len(fleet.classes)), np.inf)
        for index, node_class in enumerate(fleet.classes):
            samples = int(demand.samples[index])
            if samples:
                nodes = slice(node_class.start, node_class.stop)
                fits = (self._free_samples[columns, nodes] >= samples) & (
                    self._free_quanta[columns, nodes] >= quanta
                )
                barred[fits.any(axis=1), index] = 0.0
        return barred

    def place(self, task: int, option: VendorOption, columns: Ints, classes: Ints, value_micros: int) -> bool:
        """Give a task a node of the class that its plan has in each column.

        Returns:
            Whether every slot has room for it; if not, it gets nothing.
        """
        demand = self._instance.tasks[task].demand
        done: list[tuple[int, int]] = []
        for column, index in zip(columns.tolist(), classes.tolist(), strict=True):
            if not self._place(task, demand, column, index):
                for place in done:
                    self._give_back(task, demand, *place)
                return False
            done.append((column, index))
        self._placed[task] = _Placed(option, columns, classes, value_micros)
        self.value_micros += value_micros
        return True

    def give_up(self, task: int) -> None:
        """Release the room of a task."""
        placed = self._placed.pop(task)
        demand = self._instance.tasks[task].demand
        for column, index in zip(placed.columns.tolist(), placed.classes.tolist(), strict=True):
            self._give_back(task, demand, column, index)
        self.value_micros -= placed.value_micros

    def plans(self) -> list[PlannedTask]:
        """Return the placed plans, in the order of the instance's tasks."""
        first = self._instance.first_slot
        return [
            PlannedTask(
                job_id=self._instance.tasks[task].job_id,
                option=placed.option,
                placement=Placement(
                    tuple((placed.columns + first).tolist()),
                    tuple(
                        self._rows[column, index][task]
                        for column, index in zip(
                            placed.columns.tolist(), placed.classes.tolist(), strict=True
                        )
                    ),
                ),
            )
            for task, placed in sorted(self._placed.items())
        ]

    def _place(self, task: int, demand: Demand, column: int, index: int) -> bool:
        node_class = self._instance.fleet.classes[index]
        nodes = slice(node_class.start, node_class.stop)
        samples, quanta = int(demand.samples[index]), _quanta(demand)
        left_samples = self._free_samples[column, nodes] - samples
        left_quanta = self._free_quanta[column, nodes] - quanta
        fits = np.flatnonzero((left_samples >= 0) & (left_quanta >= 0))
        if not fits.size:
            return self._pack_again(task, column, index)
        # Best fit: the node whose scarcer remaining resource, as a part of a node, is smallest.
        left = np.minimum(
            left_samples[fits] / node_class.capacity_samples,
            left_quanta[fits] / (node_class.capacity_gib * GIB_QUANTUM),
        )
        row = node_class.start + int(fits[left.argmin()])
        self._free_samples[column, row] -= samples
        self._free_quanta[column, row] -= quanta
        self._rows.setdefault((column, index), {})[task] = row
        return True

    def _give_back(self, task: int, demand: Demand, column: int, index: int) -> None:
        row = self._rows[column, index].pop(task)
        self._free_samples[column, row] += int(demand.samples[index])
        self._free_quanta[column, row] += _quanta(demand)

    def _pack_again(self, task: int, column: int, index: int) -> bool:
        """Pack the tasks of a slot on the class again, with one more."""
        node_class = self._instance.fleet.classes[index]
        there = self._rows.get((column, index), {})
        tasks = [*there, task]
        sizes = [self._size(member, index) for member in tasks]
        room = [
            [int(self._free_samples[column, row]), int(self._free_quanta[column, row])]
            for row in range(node_class.start, node_class.stop)
        ]
        for size, member in zip(sizes, there, strict=False):
            place = there[member] - node_class.start
            room[place][0] += size[0]
            room[place][1] += size[1]
        if any(sum(s[part] for s in sizes) > sum(r[part] for r in room) for part in (0, 1)):
            return False
        where = pack(sizes, [(samples, quanta) for samples, quanta in room])
        if where is None:
            return False
        for size, place in zip(sizes, where, strict=True):
            room[place][0] -= size[0]
            room[place][1] -= size[1]
        nodes = slice(node_class.start, node_class.stop)
        self._free_samples[column, nodes] = [samples for samples, _ in room]
        self._free_quanta[column, nodes] = [quanta for _, quanta in room]
        self._rows[column, index] = {
            member: node_class.start + place for member, place in zip(tasks, where, strict=True)
        }
        return True

    def _size(self, task: int, index: int) -> Size:
        demand = self._instance.tasks[task].demand
        return int(demand.samples[index]), _quanta(demand)


def _quanta(demand: Demand) -> int:
    return math.ceil(demand.memory_gib * GIB_QUANTUM)


@dataclass(frozen=True)
class _Fill:
    """Pass over the tasks without a plan."""

    prices: Floats
    """Prices at which each task is planned, (groups, VIEWS)."""
    ordered: list[tuple[float, CandidateTask]]
    """Gains of the tasks at these prices on any nodes, in the order of planning."""


class Rounding:
    """Search for integral plans, with the best so far."""

    def __init__(self, relaxation: Relaxation) -> None:
        """Start with greedy plans: tasks one after another in the room left, the largest gain first."""
        self._relaxation = relaxation
        by_worth = _most_first(zip(relaxation.candidates, relaxation.unpriced.columns, strict=True))
        self._fills = [_Fill(relaxation.no_prices(), by_worth)]
        self._best = self._attempt([])

    def follow(self, relaxed: Relaxed) -> None:
        """Use a relaxation's prices from now on, and first make one attempt per threshold."""
        at_prices = _Fill(relaxed.prices, self._ordered(relaxed.prices))
        self._fills = [at_prices, self._fills[-1]]
        attempts = [
            self._attempt([column for part, column in relaxed.parts if part >= threshold])
            for threshold in (THRESHOLDS if relaxed.parts else THRESHOLDS[-1:])
        ]
        self._best = max([self._best, *attempts], key=lambda placing: placing.value_micros)

    @property
    def value_micros(self) -> int:
        """Welfare of the best plans."""
        return self._best.value_micros

    def plans(self) -> list[PlannedTask]:
        """Return the best plans, in the order of the instance's tasks."""
        return self._best.plans()

    def improve(self, aim_micros: float, most_stale: int, deadline_s: float) -> None:
        """Try neighbours until the welfare is `aim_micros`, none of the last `most_stale` was better, or
        `deadline_s` has passed."""
        rng = random.Random("0/neighbours")
        slots = self._relaxation.instance.slots
        stale = 0
        while (
            self._best.value_micros < aim_micros and stale < most_stale and time.perf_counter() < deadline_s
        ):
            span = min(rng.choice(SPANS_SLOTS), slots)
            first = rng.randrange(slots - span + 1)
            neighbour = self._best.copy()
            for task in neighbour.running(first, first + span):
                if rng.random() < GIVEN_UP:
                    neighbour.give_up(task)
            leading, *others = self._fills
            noisy = [(gain * math.exp(rng.gauss(0, NOISE)), c) for gain, c in leading.ordered]
            noisy.sort(key=lambda pair: (-pair[0], pair[1].index))
            for fill in (_Fill(leading.prices, noisy), *others):
                self._fill(neighbour, _within(fill.ordered, first, first + span), fill.prices)
            stale = 0 if neighbour.value_micros > self._best.value_micros else stale + 1
            if neighbour.value_micros >= self._best.value_micros:
                self._best = neighbour

    def _attempt(self, columns: Sequence[PlanColumn]) -> PlacedTasks:
        placing = PlacedTasks(self._relaxation.instance)
        for column in columns:
            if not placing.holds(column.task):
                self._place(placing, column)
        for fill in self._fills:
            self._fill(placing, (candidate for _, candidate in fill.ordered), fill.prices)
        return placing

    def _ordered(self, prices: Floats) -> list[tuple[float, CandidateTask]]:
        """Return the gain of each task at prices on any nodes, the largest first."""
        return _most_first(
            (candidate, column)
            for candidate in self._relaxation.candidates
            if (column := self._relaxation.best_column(candidate, prices)) is not None
        )

    def _fill(self, placing: PlacedTasks, candidates: Iterable[CandidateTask], prices: Floats) -> None:
        """Plan tasks in the room left, one after another, each with its largest gain at `prices`."""
        for candidate in candidates:
            if placing.holds(candidate.index):
                continue
            barred = placing.barred(candidate.task, candidate.window.columns)
            column = self._relaxation.best_column(candidate, prices, barred)
            if column is not None and column.value_micros > 0:
                self._place(placing, column)

    def _place(self, placing: PlacedTasks, column: PlanColumn) -> None:
        groups = self._relaxation.groups
        option = self._relaxation.windows[column.task].options[column.option]
        classes = groups.kind_class[groups.kinds[column.groups]]
        placing.place(column.task, option, column.columns, classes, column.value_micros)


def greedy_plans(instance: Instance) -> list[PlannedTask]:
    """Plan tasks one after another in the room left, each at the least cost, the largest gain first."""
    return Rounding(Relaxation(instance)).plans()


def _most_first(plans: Iterable[tuple[CandidateTask, PlanColumn]]) -> list[tuple[float, CandidateTask]]:
    """Return tasks with the gains of their plans, the largest first."""
    gains = [(column.gain_micros, candidate) for candidate, column in plans]
    return sorted(gains, key=lambda pair: (-pair[0], pair[1].index))


def _within(ordered: Iterable[tuple[float, CandidateTask]], first: int, stop: int) -> list[CandidateTask]:
    """Return the tasks that may run in some of the columns from `first` to before `stop`."""
    return [c for _, c in ordered if c.window.columns.start < stop and c.window.columns.stop > first]
