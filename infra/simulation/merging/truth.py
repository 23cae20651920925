"""Behaviour of jobs in a simulation, independent of a zone's forecasts."""

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from schemas.merging.estimates import MergeMode
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import STAGES_PER_PIPELINE
from schemas.merging.workload import TuningWorkload

AccuracyAfter = Callable[[float], float]
"""Validation accuracy after a number of epochs of the job's own data."""


@dataclass(frozen=True)
class ProfileTruth:
    """Results of a profile run of a job."""

    losses: tuple[float, ...]
    embedding: tuple[float, ...]
    accuracy: float | None
    """Accuracy before the first step."""
    loader_s: float
    memory_gib: float
    other_s: float = 0.0
    """Time of the run besides its start and its steps, such as that of the embedding."""
    more_steps: tuple[MeasuredStep, ...] = ()
    """Steps of other configurations that the run measured besides, such as half the micro-batch."""


class Truth(Protocol):
    """Behaviour of all jobs of a simulation."""

    def profile(self, workload: TuningWorkload, iterations: int) -> ProfileTruth:
        """Return the results of a profile run with a number of iterations."""

    def alone(self, workload: TuningWorkload) -> AccuracyAfter:
        """Return the accuracy of a job from the base model."""

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        """Return the accuracy of a receiver of a temporal merge, from its donor's final weights; or of a job
        with a partner in one run."""

    def as_receiver(self, workload: TuningWorkload, donor: TuningWorkload) -> AccuracyAfter | None:
        """Return the accuracy of a receiver with its donor's weights after a number of epochs of the donor's
        data; None if it is unknown."""

    def step(self, workload: TuningWorkload, placement: tuple[int, ...]) -> MeasuredStep:
        """Return the times of an optimizer step with given GPUs per node, in descending order."""

    def start_s(self, workload: TuningWorkload, is_warm: bool, is_prewarmed: bool) -> float:
        """Return the time between a command and the first step (s).

        Args:
            is_warm: whether the node has run a task before, so that the base model is loaded.
            is_prewarmed: whether the data loader was prepared ahead of time.
        """


@dataclass(frozen=True)
class SyntheticTruth:
    """Jobs whose learning follows from the names of their data: each dataset has a point in a plane of tasks,
    and near ones help each other. For simulations without measurements.
    """

    step_one_s: float = 0.2
    """Time of a step of eight sequences on one GPU."""
    scaling: float = 0.85
    """Exponent of the speedup: a GPUs are a ** scaling times as fast as one."""
    cold_s: float = 30.0
    warm_s: float = 0.5
    loader_s: float = 2.0

    def profile(self, workload: TuningWorkload, iterations: int) -> ProfileTruth:
        """See `Truth`."""
        x, y = self._point(workload)
        accuracy = self.alone(workload)
        per_epoch = workload.iterations_per_epoch
        losses = tuple(
            2.0 * (1.0 - accuracy(iteration / per_epoch)) + 0.1 for iteration in range(1, iterations + 1)
        )
        embedding = tuple(
            math.exp(-((x - i / 4) ** 2) - (y - j / 4) ** 2) for i in range(5) for j in range(5)
        )
        return ProfileTruth(losses, embedding, accuracy(0.0), self.loader_s, 1.0)

    def alone(self, workload: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        return self._curve(workload, head_start=0.0)

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        strength = 2.0 if mode == "temporal" else 1.0
        return self._curve(workload, strength * (self._nearness(workload, partner) - 0.5))

    def as_receiver(self, workload: TuningWorkload, donor: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        full = self.merged("temporal", workload, donor)
        before = self.alone(workload)(0.0)
        return lambda epochs: before + (full(0.0) - before) * min(epochs / 2.0, 1.0)

    def step(self, workload: TuningWorkload, placement: tuple[int, ...]) -> MeasuredStep:
        """See `Truth`."""
        gpus, batch = sum(placement), workload.hyperparameters.batch_size
        replicas = gpus // STAGES_PER_PIPELINE if workload.pipeline else gpus
        across = 1.0 + 0.1 * (len(placement) - 1)
        speedup: float = gpus**self.scaling
        step_s = self.step_one_s * batch / 8 * across / speedup
        return MeasuredStep(
            gpus=gpus,
            nodes=len(placement),
            micro_batch_size=-(-batch // replicas),
            accumulation_steps=1,
            step_s=step_s,
            exchange_s=step_s - self.step_one_s * batch / 8 / gpus,
        )

    def start_s(self, workload: TuningWorkload, is_warm: bool, is_prewarmed: bool) -> float:
        """See `Truth`."""
        del workload
        loader_s = 0.0 if is_prewarmed else self.loader_s
        return loader_s + (self.warm_s if is_warm else self.cold_s)

    def _curve(self, workload: TuningWorkload, head_start: float) -> AccuracyAfter:
        """Return a curve that approaches a ceiling, ahead by `head_start` epochs, or behind if that is
        negative."""
        target = workload.target.accuracy or 0.8
        ceiling = min(target * 1.05, 1.0)
        speed: float = self._random(workload).uniform(0.5, 1.5)

        def accuracy(epochs: float) -> float:
            return ceiling * (1.0 - math.exp(-speed * max(epochs + head_start, 0.0)))

        return accuracy

    def _nearness(self, one: TuningWorkload, other: TuningWorkload) -> float:
        return math.exp(-math.dist(self._point(one), self._point(other)))

    def _point(self, workload: TuningWorkload) -> tuple[float, float]:
        rng = self._random(workload)
        return rng.random(), rng.random()

    @staticmethod
    def _random(workload: TuningWorkload) -> random.Random:
        digest = hashlib.blake2b(workload.dataset.path.encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest))
