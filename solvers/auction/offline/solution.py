"""Result of a solver of problem P: plans, and a bound on their distance from the best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from solvers.auction.offline.feasibility import violations, welfare_micros
from solvers.auction.offline.instance import Instance, PlannedTask
from solvers.auction.offline.pricing import trivial_bound_micros

Status = Literal["optimal", "feasible", "none"]
LEAST_GAP = 1e-6
"""Least gap that a floating-point solver can prove; a smaller requested gap counts as this one."""


@dataclass(frozen=True)
class Solution:
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
    ) -> "Solution":
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
