"""Methods by which the ranks of a training job get one order of collectives, from step to step (erratum
I3)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from executors.gang.meeting import lost_at
from executors.moe.parallel.exchange import agreed_plan
from executors.moe.parallel.planning import PlannedOrder, StepPlan, measured_step, plan_step
from executors.moe.parallel.scheduler import CommunicationScheduler

Ordering = Literal["agreed", "planned"]
"""`agreed`: ranks agree as collectives are submitted. `planned`: by a plan of a measured step."""
MEASURED_STEP = 3
"""Step that is measured: DistributedDataParallel rebuilds its buckets before the second, which therefore
takes longer."""


class StepOrder:
    """Maintenance of the order of the collectives, step by step; none, if ranks agree on it as they are
    submitted."""

    def step(self) -> AbstractContextManager[None]:
        """Run the forward and the backward pass of a step within the block, on all ranks.

        Raises:
            CollectiveLostError: a rank is lost.
            DisagreementError: the step of a rank differs from that of the others.
        """
        return nullcontext()

    def packed(self) -> None:
        """React to repacked experts: later steps have other collectives."""


class PlannedSteps(StepOrder):
    """An order by plans. One of the first steps, and one of the first after each repacking, is measured; all
    ranks follow rank 0's plan of it from the next step on. Before, the order is that of submission.

    Attributes:
        plan: plan of the next step.
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
            order: order of the scheduler.
            timeout_s: most time by which a rank may be late.
        """
        self._order = order
        self._scheduler = scheduler
        self._device = device
        self._timeout_s = timeout_s
        self.packed()

    def packed(self) -> None:
        self.plan = StepPlan(())
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
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
