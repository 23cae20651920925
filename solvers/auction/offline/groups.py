"""Groups of equal nodes: those of a class with equal room in a slot share the rows of the master.

A row says that the total weight of a group's tasks is at most the number of its nodes. The weights are the
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
"""Of the dual feasible functions; functions of a higher order tell apart tasks of less than a seventh."""
VIEWS = 2 * (1 + HIGHEST_ORDER)
"""Compute and memory as they are, then by each function."""


@dataclass(frozen=True)
class Groups:
    """The nodes of an instance, grouped; groups are numbered by slot, class and kind."""

    start: Ints
    """(slots * classes + 1,) where the groups of each slot and class begin."""
    kinds: Ints
    """(groups,) index of what a node of the group has free."""
    nodes: Ints
    """(groups,) how many nodes it has."""
    kind_class: Ints
    """(kinds,)"""
    kind_samples: Ints
    """(kinds,) free samples of a node."""
    kind_quanta: Ints
    """(kinds,) free memory of a node, in quanta."""

    @classmethod
    def of(cls, instance: Instance) -> "Groups":
        """The groups of an instance's nodes; nodes without room are in none."""
        kind_of: dict[tuple[int, int, int], int] = {}
        start, kinds, nodes = [0], [], []
        # Rounded up, where it is no whole number anyhow: the bound must hold.
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
        """(kinds, VIEWS) what a slot of a task weighs on a node of a kind; infinite where it does not fit."""
        samples = demand.samples[self.kind_class]
        quanta = np.full(len(samples), int(demand.memory_gib * GIB_QUANTUM), np.int64)
        views = [samples / self.kind_samples, quanta / self.kind_quanta]
        for order in range(1, HIGHEST_ORDER + 1):
            views += [_dual_feasible(samples, self.kind_samples, order)]
            views += [_dual_feasible(quanta, self.kind_quanta, order)]
        weights = np.stack(views, axis=1)
        weights[(samples == 0) | (samples > self.kind_samples) | (quanta > self.kind_quanta)] = np.inf
        return weights


def telling(weights: Floats) -> Bools:
    """(kinds, VIEWS) which views tell more than the sums of compute and memory do.

    Args:
        weights: (tasks, kinds, VIEWS)
    """
    there = np.where(np.isfinite(weights), weights, 0.0)
    plain = np.tile(there[:, :, :2], (1, 1, 1 + HIGHEST_ORDER))
    told = np.any(there > plain, axis=0)
    told[:, :2] = True
    return cast(Bools, told)


def _dual_feasible(sizes: Ints, capacities: Ints, order: int) -> Floats:
    """x where (k + 1) x is whole, and otherwise that rounded down, over k; for x = size / capacity."""
    whole, rest = np.divmod((order + 1) * sizes, capacities)
    return np.where(rest == 0, sizes / capacities, whole / order)
