"""Result of a solver of problem P, and the cheapest plan of a task at additive prices (constraint 6a),
regardless of room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from solvers.auction.market.window import Window
from solvers.auction.mechanism.counts import NO_CHOICE
from solvers.auction.mechanism.pricing import cheapest_plan
from solvers.auction.offline.instance import Instance, OfferedTask, PlannedTask, violations, welfare_micros
from solvers.compiled import Floats, Ints, kernel

OFFLINE_BUDGET_STEPS = 200_000_000
"""Budget of one offline search for a plan: about a second at most."""

Status = Literal["optimal", "feasible", "none"]
LEAST_GAP = 1e-6
"""Least gap that a floating-point solver can prove; a smaller requested gap counts as this one."""


@dataclass(frozen=True)
class PricedPlan:
    """Cheapest plan of a task at some prices."""

    cost: float
    """Cost q + e + resource prices, in micros."""
    bound: float
    """Lower bound on the cost of all plans; equal to `cost` unless the search took too many steps."""
    option: int
    """Index of the option in the window."""
    columns: Ints
    """Columns of the instance's slots, ascending."""
    classes: Ints
    """Class in each column."""


def window_of(instance: Instance, task: OfferedTask) -> Window | None:
    """Return the task's part of an instance; None if even empty nodes could not do its work in time."""
    return Window.within(
        instance.first_slot,
        instance.full_costs,
        task.demand,
        task.options,
        task.first_slot,
        task.last_slot,
    )


def price(task: OfferedTask, window: Window, costs: Floats) -> PricedPlan | None:
    """Return the cheapest plan at `costs` (slots of the window, classes), which are overwritten; or None.

    `costs` holds e plus the price of the resources of each slot, infinite without room.
    """
    costs[:, task.demand.samples == 0] = np.inf
    plan = cheapest_plan(
        costs,
        task.demand.samples,
        task.demand.work_samples,
        window.delays_slots,
        window.prices_micros,
        math.inf,
        OFFLINE_BUDGET_STEPS,
    )
    if plan.option < 0:
        return None
    slots = np.flatnonzero(plan.chosen != NO_CHOICE)
    return PricedPlan(plan.cost, plan.bound, plan.option, slots + window.columns.start, plan.chosen[slots])


def trivial_bound_micros(instance: Instance) -> int:
    """Return the dual objective (Eq. 6) at prices of zero: the sum of max(0, b_i - least q + e of a plan)."""
    total = 0
    for task in instance.tasks:
        window = window_of(instance, task)
        plan = None if window is None else price(task, window, window.operational.copy())
        if plan is not None:
            total += max(math.ceil(task.bid_micros - plan.bound), 0)
    return total


@kernel
def node_slot_costs(
    operational: Floats, first_group: Ints, kinds: Ints, weights: Floats, prices: Floats
) -> tuple[Floats, Ints]:
    """Return the least e + price of the views of a group's nodes, per slot and class, and the group.

    Args:
        operational: (slots, classes) operational costs.
        first_group: (slots * classes + 1,) index of the first group of each slot and class.
        kinds: (groups,) kind of each group.
        weights: (kinds, views) weights of the task, infinite where it does not fit.
        prices: (groups, views) prices, never negative.

    Returns:
        Costs, infinite where it fits nowhere, and groups, (slots, classes) each.
    """
    slots, classes = operational.shape
    costs = np.full((slots, classes), np.inf)
    groups = np.full((slots, classes), -1, np.int64)
    for slot in range(slots):
        for index in range(classes):
            place = slot * classes + index
            for group in range(first_group[place], first_group[place + 1]):
                kind = kinds[group]
                if weights[kind, 0] == np.inf:
                    continue
                cost = operational[slot, index]
                for view in range(weights.shape[1]):
                    cost += prices[group, view] * weights[kind, view]
                if cost < costs[slot, index]:
                    costs[slot, index], groups[slot, index] = cost, group
    return costs, groups


@dataclass(frozen=True)
class OfflineSolution:
    """Plans that satisfy problem P, and a bound on the welfare of any."""

    status: Status
    """Status. `optimal`: proven within the requested relative gap. `feasible`: the gap is still open. `none`:
    no plans were found in time, although some might be profitable; the bound still holds."""
    plans: tuple[PlannedTask, ...]
    """Plans in the order of the instance's tasks."""
    welfare_micros: int
    """Objective 4 of the plans, in whole micros."""
    bound_micros: int
    """Bound on the welfare of all plans. Welfare is whole, so the bound is rounded down."""
    seconds: float
    """Wall-clock time of the solve."""

    @property
    def gap(self) -> float:
        """Relative gap (bound - welfare) / welfare; infinite without welfare."""
        if self.bound_micros == self.welfare_micros:
            return 0.0
        if self.welfare_micros <= 0:
            return math.inf
        return (self.bound_micros - self.welfare_micros) / self.welfare_micros

    @classmethod
    def of(
        cls,
        instance: Instance,
        plans: Sequence[PlannedTask],
        bound_micros: float,
        relative_gap: float,
        seconds: float,
    ) -> "OfflineSolution":
        """Make a solution from a solver's plans, checked against the instance and added up again.

        Args:
            bound_micros: the solver's bound with an allowance for rounding; infinite without one.

        Raises:
            ValueError: the plans violate problem P: an error of the solver.
        """
        if faults := violations(instance, plans):
            raise ValueError(f"{len(faults)} violations of problem P by a solver's plans: {faults[0]}")
        welfare = welfare_micros(instance, plans)
        bound = trivial_bound_micros(instance)
        if bound_micros < bound:
            bound = math.floor(bound_micros)
        # The welfare of checked plans is a valid bound from below, whatever the solver's arithmetic.
        bound = max(bound, welfare)
        status: Status = "feasible" if plans else "none"
        if bound - welfare <= max(relative_gap, LEAST_GAP) * welfare:
            status = "optimal"
        order = {task.job_id: place for place, task in enumerate(instance.tasks)}
        return cls(
            status=status,
            plans=tuple(sorted(plans, key=lambda plan: order[plan.job_id])),
            welfare_micros=welfare,
            bound_micros=bound,
            seconds=seconds,
        )
