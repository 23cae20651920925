"""Integral plans on nodes: greedy plans, then large fractions of a relaxation, then local improvements."""

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solvers.auction.offline.instance import Instance, PlannedTask
from solvers.auction.offline.master import PlanColumn
from solvers.auction.offline.placing import PlacedTasks
from solvers.auction.offline.relaxation import CandidateTask, Relaxation, Relaxed
from solvers.compiled import Floats

THRESHOLDS = (0.999, 0.7, 0.5, math.inf)
"""Fractions of the relaxation from which on plans are placed first, with one attempt per threshold."""
SPANS_SLOTS = (2, 4, 8, 16)
"""Spans in slots. A neighbour releases most tasks that run within a span and plans them again."""
GIVEN_UP = 0.7
NOISE = 0.2
"""Deviation of the logarithm of the gains by which a neighbour orders its tasks."""


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

    def improve(self, aim_micros: float, patience: int, deadline_s: float) -> None:
        """Try neighbours until the welfare is `aim_micros`, none of the last `patience` was better, or
        `deadline_s` has passed."""
        draws = random.Random("0/neighbours")
        slots = self._relaxation.instance.slots
        stale = 0
        while self._best.value_micros < aim_micros and stale < patience and time.perf_counter() < deadline_s:
            span = min(draws.choice(SPANS_SLOTS), slots)
            first = draws.randrange(slots - span + 1)
            neighbour = self._best.copy()
            for task in neighbour.running(first, first + span):
                if draws.random() < GIVEN_UP:
                    neighbour.give_up(task)
            leading, *others = self._fills
            noisy = [(gain * math.exp(draws.gauss(0, NOISE)), c) for gain, c in leading.ordered]
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
