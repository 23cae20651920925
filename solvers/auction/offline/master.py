"""Restricted master of P_1 (Eq. 5): the plans found so far, in HiGHS, which keeps its basis.

Nodes of a class with equal room in a slot are a group, which shares the rows of the master.

A row states that the total weight of a group's tasks is at most the number of its nodes. The weights are a
task's shares of a node's compute and memory, and dual feasible functions of these shares. Such a function f
has sum f(x) <= 1 wherever sum x <= 1 (Fekete and Schepers, "New classes of fast lower bounds for bin packing
problems", 2001). They express that two tasks of 0.4 of a node leave no room for a third, which sums do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import highspy
import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import GIB_QUANTUM
from solvers.auction.offline.instance import Instance
from solvers.compiled import Bools, Floats, Ints

HIGHEST_ORDER = 6
"""Highest order of the dual feasible functions. Higher ones only distinguish tasks below 1/7 of a node."""
VIEWS = 2 * (1 + HIGHEST_ORDER)
"""Number of views: compute and memory directly, then by each function."""

LARGEST_COEFFICIENT = 1_000.0
"""Largest coefficient of the objective: HiGHS's absolute tolerances are meant for such numbers."""
PRIMAL_SIMPLEX = 4
"""HiGHS's code of the primal simplex: with new columns, the basis stays feasible for the primal."""


@dataclass(frozen=True)
class NodeGroups:
    """Nodes of an instance in groups, which are numbered by slot, class and kind."""

    start: Ints
    """Index of the first group of each slot and class, (slots * classes + 1,)."""
    kinds: Ints
    """Kind of the group's nodes, by their free room, (groups,)."""
    nodes: Ints
    """Number of nodes of the group, (groups,)."""
    kind_class: Ints
    """Class of a kind, (kinds,)."""
    kind_samples: Ints
    """Free samples of a node, (kinds,)."""
    kind_quanta: Ints
    """Free memory of a node, in quanta, (kinds,)."""

    @classmethod
    def of(cls, instance: Instance) -> "NodeGroups":
        """Return the groups of an instance's nodes, without nodes that have no room."""
        kind_of: dict[tuple[int, int, int], int] = {}
        start, kinds, nodes = [0], [], []
        # Rounded up if it is not whole: the bound must hold.
        free_samples = np.ceil(instance.free_samples).astype(np.int64)
        free_quanta = np.ceil(instance.free_gib * GIB_QUANTUM).astype(np.int64)
        for column in range(instance.slots):
            for index, node_class in enumerate(instance.fleet.classes):
                members: dict[tuple[int, int, int], int] = {}
                for row in range(node_class.start, node_class.stop):
                    samples, quanta = int(free_samples[column, row]), int(free_quanta[column, row])
                    if samples > 0 and quanta > 0:
                        members[index, samples, quanta] = members.get((index, samples, quanta), 0) + 1
                for kind in sorted(members):
                    kinds.append(kind_of.setdefault(kind, len(kind_of)))
                    nodes.append(members[kind])
                start.append(len(kinds))
        shapes = np.array(list(kind_of), np.int64).reshape(-1, 3)
        return cls(
            start=np.array(start, np.int64),
            kinds=np.array(kinds, np.int64),
            nodes=np.array(nodes, np.int64),
            kind_class=shapes[:, 0],
            kind_samples=shapes[:, 1],
            kind_quanta=shapes[:, 2],
        )

    def weights(self, demand: Demand) -> Floats:
        """Return the weight of a slot of a task on a node, (kinds, VIEWS); infinite where it does not fit."""
        samples = demand.samples[self.kind_class]
        quanta = np.full(len(samples), int(demand.memory_gib * GIB_QUANTUM), np.int64)
        views = [samples / self.kind_samples, quanta / self.kind_quanta]
        for order in range(1, HIGHEST_ORDER + 1):
            views += [_dual_feasible(samples, self.kind_samples, order)]
            views += [_dual_feasible(quanta, self.kind_quanta, order)]
        weights = np.stack(views, axis=1)
        weights[(samples == 0) | (samples > self.kind_samples) | (quanta > self.kind_quanta)] = np.inf
        return weights


def constraining(weights: Floats) -> Bools:
    """Return which views constrain more than the sums of compute and memory, (kinds, VIEWS).

    Args:
        weights: (tasks, kinds, VIEWS) weights of the tasks.
    """
    there = np.where(np.isfinite(weights), weights, 0.0)
    plain = np.tile(there[:, :, :2], (1, 1, 1 + HIGHEST_ORDER))
    constrains = np.any(there > plain, axis=0)
    constrains[:, :2] = True
    return cast(Bools, constrains)


def _dual_feasible(sizes: Ints, capacities: Ints, order: int) -> Floats:
    """Return x if (k + 1) x is whole, else floor((k + 1) x) / k, for x = size / capacity."""
    whole, rest = np.divmod((order + 1) * sizes, capacities)
    return np.where(rest == 0, sizes / capacities, whole / order)


@dataclass(frozen=True)
class PlanColumn:
    """Plan of a task on groups of nodes."""

    task: int
    """Index of the task in the instance."""
    option: int
    """Index of the option in the task's window."""
    columns: Ints
    """Columns of the instance's slots, ascending."""
    groups: Ints
    """Group of nodes in each column."""
    value_micros: int
    """Value b_il."""
    gain_micros: float
    """Value b_il less the resources at its prices: the largest gain of the task's plans there."""

    @property
    def key(self) -> tuple[int, int, bytes]:
        """Identity of the column: a group implies its slot."""
        return self.task, self.option, self.groups.tobytes()


class Master:
    """Linear program with plans as columns; rows are tasks (5a), and views of groups of nodes (5b, 5c)."""

    def __init__(self, groups: NodeGroups, has_row: Bools, weights: Mapping[int, Floats]) -> None:
        """Make an empty master.

        Args:
            has_row: (kinds, VIEWS) whether a view has rows.
            weights: (kinds, VIEWS) weights of each task, by its index.
        """
        self.columns: list[PlanColumn] = []
        self._groups, self._weights, self._scale = groups, weights, 1.0
        self._keys: set[tuple[int, int, bytes]] = set()
        self._row_of_task = {task: row for row, task in enumerate(weights)}
        self._has_row = has_row[groups.kinds]
        numbers = np.cumsum(self._has_row).reshape(self._has_row.shape) - 1 + len(weights)
        self._row_of_view = np.where(self._has_row, numbers, -1)
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("simplex_strategy", PRIMAL_SIMPLEX)
        upper = np.concatenate([np.ones(len(weights)), np.repeat(groups.nodes, self._has_row.sum(axis=1))])
        rows, numbers = upper.size, np.zeros(0, np.int32)
        self._highs.addRows(
            rows, np.full(rows, -np.inf), upper, 0, np.zeros(rows, np.int32), numbers, np.zeros(0)
        )

    def add(self, columns: Sequence[PlanColumn]) -> int:
        """Add the plans that are new, and return their number."""
        fresh = [column for column in columns if column.key not in self._keys]
        if not fresh:
            return 0
        self._keys.update(column.key for column in fresh)
        if not self.columns:
            self._scale = max(column.value_micros for column in fresh) / LARGEST_COEFFICIENT
        starts, indices, values = [0], [], []
        for column in fresh:
            has_row = self._has_row[column.groups]
            weights = self._weights[column.task][self._groups.kinds[column.groups]][has_row]
            held = weights > 0
            indices += [
                np.array([self._row_of_task[column.task]]),
                self._row_of_view[column.groups][has_row][held],
            ]
            values += [np.ones(1), weights[held]]
            starts.append(starts[-1] + 1 + int(held.sum()))
        self._highs.addCols(
            len(fresh),
            np.array([-column.value_micros / self._scale for column in fresh]),
            np.zeros(len(fresh)),
            np.full(len(fresh), np.inf),
            starts[-1],
            np.array(starts[:-1], np.int32),
            np.concatenate(indices).astype(np.int32),
            np.concatenate(values),
        )
        self.columns += fresh
        return len(fresh)

    def solve(self, time_limit_s: float) -> Floats | None:
        """Return the relaxation's prices, (groups, VIEWS), in micros per node; None if time runs out."""
        if not self._run(time_limit_s):
            return None
        duals = np.maximum(-np.array(self._highs.getSolution().row_dual), 0.0) * self._scale
        prices: Floats = np.zeros(self._has_row.shape)
        prices[self._has_row] = duals[len(self._weights) :]
        return prices

    @property
    def value_micros(self) -> float:
        """Value of the last relaxation."""
        return -float(self._highs.getInfo().objective_function_value) * self._scale

    def parts(self) -> list[tuple[float, PlanColumn]]:
        """Return the plans of the last relaxation's solution with their fractions, the largest first."""
        values = self._highs.getSolution().col_value
        chosen = [(value, column) for column, value in zip(self.columns, values, strict=True) if value > 0]
        return sorted(chosen, key=lambda part: (-part[0], part[1].task, part[1].key))

    def _run(self, time_limit_s: float) -> bool:
        # HiGHS's time limit counts all its runs.
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(time_limit_s, 0.0))
        self._highs.run()
        return bool(self._highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)
