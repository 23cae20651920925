"""The job agent: it tunes the batch and the learning rate of a job that asks for it (Lyra+TunedJobs)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from executors.gang.group import ProcessGroup
from schemas.base import Record
from schemas.elastic.workload import TrainingHyperparameters, TuningBounds
from solvers.elastic.batch_shares import batch_shares, step_time
from solvers.elastic.batch_tuning import (
    NoiseScale,
    SmallGradients,
    best_batch,
    learning_rate,
    noise_and_signal,
)


class KnownNoise(Record):
    """Measurements of a job agent, kept in the job's checkpoints; see `NoiseScale`."""

    noise: float
    signal: float
    steps: int
    rest_ns: int
    """Least time of a step besides that of its shares (ns)."""


class JobAgent:
    """Measures the gradient noise of a job in each step, and tunes the job at the start of a generation.

    The thesis' agent adjusts both values "whenever job resource allocation changes" (section 3.7.1).

    Attributes:
        batch: sequences in a step.
        learning_rate: AdamW's step size.
        scale: measured noise, the same on all ranks between two steps.
    """

    def __init__(self, hyperparameters: TrainingHyperparameters, bounds: TuningBounds) -> None:
        self._own, self._bounds = hyperparameters, bounds
        self.batch = hyperparameters.global_batch_size
        self.learning_rate = hyperparameters.learning_rate
        self.scale = NoiseScale()
        self._part = [0.0, 0.0, 0.0]
        self._rest_ns = 0
        self._has_stepped = False
        """Whether a step of this generation has ended."""

    def note_part(self, gradient: Tensor, sequences: int, tokens_part: float) -> None:
        """Note the gradient of a rank's first micro-batch.

        Args:
            gradient: the part's sum over the tokens of the whole batch.
            tokens_part: the part's tokens over those of the whole batch.
        """
        if tokens_part > 0:
            norm = float(torch.linalg.vector_norm(gradient)) / tokens_part
            self._part = [sequences * norm**2, sequences, 1.0]

    def end_step(self, group: ProcessGroup, norm: float, batch: int, rest_ns: int) -> None:
        """Update the noise by a step, with all ranks.

        Args:
            norm: norm of the mean gradient of the whole batch.
            rest_ns: time of the step besides that of the shares (ns).
        """
        sums = torch.tensor(self._part, dtype=torch.float64)
        group.add_up("the gradient noise", sums)
        estimate = noise_and_signal(SmallGradients(*sums.tolist()), norm, batch)
        if estimate is not None:
            self.scale = self.scale.after(*estimate)
        self._part = [0.0, 0.0, 0.0]
        # The rest of a rank contains its wait for other ranks, so the least one counts.
        self._rest_ns = min(self._rest_ns, rest_ns) if self._has_stepped else rest_ns
        self._has_stepped = True

    def begin(self, group: ProcessGroup) -> None:
        """Copy the measurements of the rank that has the most to all ranks: some may be new."""
        rows = group.gather("the steps of the job agents", [self.scale.steps, self._rest_ns])
        steps = [row[0] for row in rows]
        scale = torch.tensor([self.scale.noise, self.scale.signal], dtype=torch.float64)
        group.spread("the gradient noise", [scale], steps.index(max(steps)))
        noise, signal = scale.tolist()
        self.scale = NoiseScale(noise, signal, max(steps))
        self._rest_ns = min((row[1] for row in rows if row[1]), default=0)
        self._has_stepped = False

    def best_batch(self, costs: Sequence[int]) -> int:
        """Return the batch of the highest goodput, by the costs of a sequence on the ranks (ns)."""
        return best_batch(
            self._own.global_batch_size,
            (self._bounds.least_global_batch_size, self._bounds.most_global_batch_size),
            self.scale.sequences,
            lambda batch: self._rest_ns + step_time(batch_shares(batch, costs), costs),
        )

    def use_batch(self, batch: int) -> None:
        """Train with a batch of this size from now on, and the learning rate that suits it."""
        self.batch = batch
        self.learning_rate = learning_rate(
            self._own.learning_rate,
            self._own.global_batch_size,
            batch,
            self.scale.sequences,
            (self._bounds.least_learning_rate or 0.0, self._bounds.most_learning_rate),
        )

    def notes(self) -> KnownNoise:
        """Return the measurements, for a checkpoint."""
        scale = self.scale
        return KnownNoise(noise=scale.noise, signal=scale.signal, steps=scale.steps, rest_ns=self._rest_ns)

    def recall(self, known: KnownNoise) -> None:
        """Continue with the measurements of a checkpoint."""
        self.scale, self._rest_ns = NoiseScale(known.noise, known.signal, known.steps), known.rest_ns
