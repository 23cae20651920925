"""How the ranks of a job that trains come to one order of collectives, from step to step (erratum I3)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Protocol

import torch

from executors.gang.meeting import lost_at
from executors.moe.parallel.exchange import agreed_plan
from executors.moe.parallel.planning import Plan, PlannedOrder, measured_step, plan_step
from executors.moe.parallel.scheduler import CommunicationScheduler

Ordering = Literal["agreed", "planned"]
"""Agreed on as collectives come, or by a plan of a step that was measured."""
MEASURED_STEP = 3
"""Which step is measured: DistributedDataParallel makes its buckets anew before the second, which therefore
takes longer."""


class StepOrder(Protocol):
    """What has to be done for the order of the collectives of a step."""

    def step(self) -> AbstractContextManager[None]:
        """For the forward and the backward pass of a step, on all ranks.

        Raises:
            CollectiveLostError: a rank is gone.
            DisagreementError: the step of a rank is not that of the others.
        """

    def packed(self) -> None:
        """Experts were packed anew: steps have other collectives from now on."""


class AgreedSteps:
    """Nothing: ranks agree on the order as collectives come."""

    def step(self) -> AbstractContextManager[None]:
        """See `StepOrder`."""
        return nullcontext()

    def packed(self) -> None:
        """See `StepOrder`."""


class PlannedSteps:
    """One of the first steps, and one of the first since experts were packed anew, is measured; all follow
    rank 0's plan of it from the next step on. Until then the order is that of submission.

    Attributes:
        plan: of the next step.
    """

    def __init__(
        self,
        order: PlannedOrder,
        scheduler: CommunicationScheduler,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        """
        Args:
            order: by which the scheduler issues.
            timeout_s: how long a rank may be late.
        """
        self._order = order
        self._scheduler = scheduler
        self._device = device
        self._timeout_s = timeout_s
        self.packed()

    def packed(self) -> None:
        """See `StepOrder`."""
        self.plan = Plan(())
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """See `StepOrder`."""
        self._order.begin_step(self.plan)
        self._steps += 1
        if self._steps != MEASURED_STEP:
            yield
            return
        with self._scheduler.recording(self._device) as recording:
            yield
        gaps_s, allreduces = measured_step(recording.records(), recording.began_s)
        with lost_at("planning the order of collectives", self._timeout_s):
            self.plan = agreed_plan(plan_step(gaps_s, allreduces), len(gaps_s))
