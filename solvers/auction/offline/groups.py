"""Groups of equal nodes: nodes of a class with equal room in a slot share the rows of the master.

A row states that the total weight of a group's tasks is at most the number of its nodes. The weights are the
shares of a node's compute and memory that a task takes, and dual feasible functions of them: functions f with
sum f(x) <= 1 wherever sum x <= 1 (Fekete and Schepers, "New classes of fast lower bounds for bin packing
problems", 2001). They express that two tasks of 0.4 of a node leave no room for a third, which sums do not.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import GIB_QUANTUM
from solvers.auction.offline.instance import Instance
from solvers.compiled import Bools, Floats, Ints

HIGHEST_ORDER = 6
"""Highest order of the dual feasible functions. Higher ones only distinguish tasks below 1/7 of a node."""
VIEWS = 2 * (1 + HIGHEST_ORDER)
"""Number of views: compute and memory directly, then by each function."""


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
