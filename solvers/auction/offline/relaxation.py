"""The linear relaxation of P_1 (Eq. 5) by column generation, and the bound of its dual (Eq. 6)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.auction.market.window import Window
from solvers.auction.offline.groups import VIEWS, Groups, telling
from solvers.auction.offline.instance import Instance, OfferedTask
from solvers.auction.offline.master import Column, Master
from solvers.auction.offline.pricing import node_slot_costs, price, window_of
from solvers.compiled import Floats

LP_GAP = 1e-4
"""Between the bound and the master's value, at which there is no more to gain."""
SMOOTHING = 0.3
"""Weight of the best prices so far beside the master's last ones, which jump to and fro (Wentges 1997)."""


@dataclass(frozen=True)
class Candidate:
    """A task that some plan could bring something for, and what it weighs."""

    index: int
    """Among the instance's tasks."""
    task: OfferedTask
    window: Window
    weights: Floats
    """(kinds, VIEWS)"""


@dataclass(frozen=True)
class Priced:
    """The dual objective at some prices, and the plans that it is made of."""

    bound_micros: float
    columns: list[Column]
    """Of every task that would gain, its best plan."""


@dataclass(frozen=True)
class Relaxed:
    """What a search for the least dual objective came to."""

    bound_micros: float
    prices: Floats
    """(groups, VIEWS) of that bound, in micros per node."""
    parts: list[tuple[float, Column]]
    """The plans of the relaxation's solution and how much of each it takes, the most first; none where only
    prices were sought, time ran out, or the bound was low enough before."""


class Relaxation:
    """An instance as the master sees it: groups of nodes, and tasks with their windows and weights."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.groups = Groups.of(instance)
        self.candidates: list[Candidate] = []
        cheapest: list[Column] = []
        unpriced = self.no_prices()
        for index, task in enumerate(instance.tasks):
            window = window_of(instance, task)
            if window is None:
                continue
            candidate = Candidate(index, task, window, self.groups.weights(task.demand))
            if (column := self.best_column(candidate, unpriced)) is not None and column.value_micros > 0:
                self.candidates.append(candidate)
                cheapest.append(column)
        self.unpriced = Priced(math.fsum(column.value_micros for column in cheapest), cheapest)
        """At prices of zero: a plan of every candidate."""
        self._weights = {candidate.index: candidate.weights for candidate in self.candidates}
        self.windows = {candidate.index: candidate.window for candidate in self.candidates}
        shape = (len(self.candidates), len(self.groups.kind_class), VIEWS)
        self.told = telling(np.array([candidate.weights for candidate in self.candidates]).reshape(shape))

    def no_prices(self) -> Floats:
        """(groups, VIEWS) zeros."""
        return np.zeros((len(self.groups.kinds), VIEWS))

    def best_column(
        self, candidate: Candidate, prices: Floats, barred: Floats | None = None
    ) -> Column | None:
        """The plan of a task that gains most at prices (groups, VIEWS).

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
        return Column(
            task=candidate.index,
            option=plan.option,
            columns=plan.columns,
            groups=groups[ahead, plan.classes],
            value_micros=candidate.task.bid_micros - spent,
            gain_micros=candidate.task.bid_micros - plan.bound,
        )

    def priced(self, candidates: Sequence[Candidate], share: float, prices: Floats) -> Priced:
        """The dual objective (Eq. 6) of some of the tasks and a share of every node's room: a bound at any
        prices >= 0, as no plan of a task gains more than its best (constraint 6a)."""
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
            enough_micros: at a bound no higher than this there is nothing more to prove.
            deadline_s: of the performance counter, at which to end in any case.
        """
        master = Master(self.groups, self.told, {c.index: c.weights for c in self.candidates})
        at, prices = self.unpriced, self.no_prices()
        best_micros, best_prices = at.bound_micros, prices
        smoothing = SMOOTHING
        while True:
            if best_micros <= enough_micros:
                return Relaxed(best_micros, best_prices, [])
            added = master.add(at.columns)
            if not added and not smoothing:
                return Relaxed(best_micros, best_prices, master.parts())
            # Where the smoothed prices bring nothing new, the master's own do, or there is nothing new.
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

    def surplus(self, columns: Sequence[Column], share: float) -> Floats:
        """(groups, VIEWS) what plans weigh less what a share of the nodes holds; 0 where there is no row.

        Of the plans at some prices it is the bound's subgradient there, with its sign turned.
        """
        surplus = np.tile(-share * self.groups.nodes[:, None], (1, VIEWS))
        if columns:
            held = [self._weights[column.task][self.groups.kinds[column.groups]] for column in columns]
            np.add.at(surplus, np.concatenate([column.groups for column in columns]), np.concatenate(held))
        return np.where(self.told[self.groups.kinds], surplus, 0.0)
