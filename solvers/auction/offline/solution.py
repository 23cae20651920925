"""The result of a solver of problem P: plans, and a bound on their distance from the best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from solvers.auction.offline.feasibility import violations, welfare_micros
from solvers.auction.offline.instance import Instance, PlannedTask
from solvers.auction.offline.pricing import trivial_bound_micros

Status = Literal["optimal", "feasible", "none"]
LEAST_GAP = 1e-6
"""What a solver in floating point can prove at best: a smaller gap that is asked for counts as this one."""


@dataclass(frozen=True)
class Solution:
    """Plans that satisfy problem P, and a bound on what any could bring."""

    status: Status
    """`optimal`: proven within the relative gap that was asked for. `feasible`: the gap is still open.
    `none`: no plans were found in time, although some might bring something; the bound holds all the same."""
    plans: tuple[PlannedTask, ...]
    """In the order of the instance's tasks."""
    welfare_micros: int
    """Objective 4 of the plans, added up in whole micros."""
    bound_micros: int
    """No plans whatever bring more. Welfare is whole, so what is below one micro of a bound is cut off."""
    seconds: float
    """Of wall clock that it took."""

    @property
    def gap(self) -> float:
        """(bound - welfare) / welfare; infinite where there is no welfare to compare with."""
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
        """What a solver found, checked against the instance and added up again.

        Args:
            bound_micros: the solver's own bound, its rounding allowed for; infinite where it has none.

        Raises:
            ValueError: the plans violate problem P, which is a fault of the solver that made them.
        """
        if faults := violations(instance, plans):
            raise ValueError(f"{len(faults)} violations of problem P by a solver's plans: {faults[0]}")
        welfare = welfare_micros(instance, plans)
        bound = trivial_bound_micros(instance)
        if bound_micros < bound:
            bound = math.floor(bound_micros)
        # What is reached is possible, whatever the solver's arithmetic made of it.
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
