"""Linear relaxation of P_1 (Eq. 5) by column generation, and the bound of its dual (Eq. 6)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.window import Window
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.auction.offline.master import VIEWS, Master, NodeGroups, PlanColumn, constraining
from solvers.auction.offline.solution import node_slot_costs, price, window_of
from solvers.compiled import Floats

LP_GAP = 1e-4
"""Relative gap between the bound and the master's value at which the generation ends."""
SMOOTHING = 0.3
"""Weight of the best prices so far against the master's last ones, which oscillate (Wentges 1997)."""


@dataclass(frozen=True)
class CandidateTask:
    """Task with a possibly profitable plan, and its weights."""

    index: int
    """Index of the task in the instance."""
    task: OfferedTask
    window: Window
    weights: Floats
    """Weights of a slot of the task, (kinds, VIEWS)."""


@dataclass(frozen=True)
class Priced:
    """Dual objective at some prices, and the plans that determine it."""

    bound_micros: float
    columns: list[PlanColumn]
    """Best plan of every task with a gain."""


@dataclass(frozen=True)
class Relaxed:
    """Result of a search for the least dual objective."""

    bound_micros: float
    prices: Floats
    """Prices of that bound, in micros per node, (groups, VIEWS)."""
    parts: list[tuple[float, PlanColumn]]
    """Plans of the relaxation's solution with their fractions, the largest first. Empty if only prices were
    computed, time ran out, or the bound was low enough before."""


class Relaxation:
    """Instance in the form of the master: groups of nodes, and tasks with their windows and weights."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.groups = NodeGroups.of(instance)
        self.candidates: list[CandidateTask] = []
        cheapest: list[PlanColumn] = []
        unpriced = self.no_prices()
        for index, task in enumerate(instance.tasks):
            window = window_of(instance, task)
            if window is None:
                continue
            candidate = CandidateTask(index, task, window, self.groups.weights(task.demand))
            if (column := self.best_column(candidate, unpriced)) is not None and column.value_micros > 0:
                self.candidates.append(candidate)
                cheapest.append(column)
        self.unpriced = Priced(math.fsum(column.value_micros for column in cheapest), cheapest)
        """Plan of every candidate at prices of zero."""
        self._weights = {candidate.index: candidate.weights for candidate in self.candidates}
        self.windows = {candidate.index: candidate.window for candidate in self.candidates}
        shape = (len(self.candidates), len(self.groups.kind_class), VIEWS)
        weights = np.array([candidate.weights for candidate in self.candidates])
        self.has_row = constraining(weights.reshape(shape))

    def no_prices(self) -> Floats:
        """Return zeros, (groups, VIEWS)."""
        return np.zeros((len(self.groups.kinds), VIEWS))

    def best_column(
        self, candidate: CandidateTask, prices: Floats, barred: Floats | None = None
    ) -> PlanColumn | None:
        """Return the plan of a task with the largest gain at prices (groups, VIEWS).

        Args:
            barred: (slots of its window, classes) 0, or infinite where it must not run.
        """
        window = candidate.window
        columns, classes = window.columns, len(self.instance.fleet.classes)
        costs, groups = node_slot_costs(
            window.operational,
            self.groups.start[columns.start * classes : columns.stop * classes + 1],
            self.groups.kinds,
            candidate.weights,
            prices,
        )
        plan = price(candidate.task, window, costs if barred is None else costs + barred)
        if plan is None:
            return None
        ahead = plan.columns - columns.start
        spent = window.options[plan.option].price_micros + int(window.operational[ahead, plan.classes].sum())
        return PlanColumn(
            task=candidate.index,
            option=plan.option,
            columns=plan.columns,
            groups=groups[ahead, plan.classes],
            value_micros=candidate.task.bid_micros - spent,
            gain_micros=candidate.task.bid_micros - plan.bound,
        )

    def priced(self, candidates: Sequence[CandidateTask], share: float, prices: Floats) -> Priced:
        """Return the dual objective (Eq. 6) of some of the tasks and a share of every node's room: a bound at
        any prices >= 0, as no plan of a task gains more than its best (constraint 6a)."""
        columns = [
            column
            for candidate in candidates
            if (column := self.best_column(candidate, prices)) is not None and column.gain_micros > 0
        ]
        rooms = share * self.groups.nodes * prices.sum(axis=1)
        gains = [math.ceil(column.gain_micros) for column in columns]
        return Priced(math.fsum([*gains, *rooms.tolist()]), columns)

    def generate(self, enough_micros: float, deadline_s: float) -> Relaxed:
        """Generate columns, beginning with those at prices of zero, until the bound meets the master's value.

        Args:
            enough_micros: bound at which the search ends.
            deadline_s: time of the performance counter at which the search ends.
        """
        master = Master(self.groups, self.has_row, {c.index: c.weights for c in self.candidates})
        at, prices = self.unpriced, self.no_prices()
        best_micros, best_prices = at.bound_micros, prices
        smoothing = SMOOTHING
        while True:
            if best_micros <= enough_micros:
                return Relaxed(best_micros, best_prices, [])
            added = master.add(at.columns)
            if not added and not smoothing:
                return Relaxed(best_micros, best_prices, master.parts())
            # If the smoothed prices give no new columns, the master's own do, or no new ones exist.
            smoothing = SMOOTHING if added else 0.0
            duals = master.solve(deadline_s - time.perf_counter())
            if duals is None:
                return Relaxed(best_micros, best_prices, [])
            if best_micros - master.value_micros <= LP_GAP * best_micros:
                return Relaxed(best_micros, best_prices, master.parts())
            prices = smoothing * best_prices + (1.0 - smoothing) * duals
            at = self.priced(self.candidates, 1.0, prices)
            if at.bound_micros < best_micros:
                best_micros, best_prices = at.bound_micros, prices

    def surplus(self, columns: Sequence[PlanColumn], share: float) -> Floats:
        """Return the weight of plans less the capacity of a share of the nodes, (groups, VIEWS); 0 without a
        row.

        For the plans at some prices, it is the negative subgradient of the bound there.
        """
        surplus = np.tile(-share * self.groups.nodes[:, None], (1, VIEWS))
        if columns:
            held = [self._weights[column.task][self.groups.kinds[column.groups]] for column in columns]
            np.add.at(surplus, np.concatenate([column.groups for column in columns]), np.concatenate(held))
        return np.where(self.has_row[self.groups.kinds], surplus, 0.0)
