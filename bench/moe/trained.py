"""One model trained from scratch by one scheme: its losses over time, and its computation."""

import time
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bench.moe.tasks import LearningTask
from executors.moe.block import auxiliary_loss, pop_passes, set_gating
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.gating import Gating
from executors.moe.training.samples import Curriculum

_BALANCE = 0.01
"""Weight of the balance loss (section 5.4.3)."""
_WARM_UP_STEPS = 20
_LARGEST_GRADIENT = 1.0
"""Largest norm; longer gradients are scaled to it, without which the encoder learns unevenly."""
_KEPT = 0.95
"""Kept part of the weights' average in each step: about 20 steps count, so that a loss shows the progress of
training and not the last batch."""


@dataclass(frozen=True)
class TrainingScheme:
    """Scheme of training; without a gating the model is dense."""

    gating: Gating | None
    curriculum: bool = False

    def __str__(self) -> str:
        if self.gating is None:
            return "dense"
        if self.gating.mode != "adaptive":
            return self.gating.mode
        on_all = " all" if self.gating.threshold_on == "all" else ""
        return f"adaptive {self.gating.threshold:g}{on_all}"


@dataclass
class ModelRun:
    """Measurements of one model.

    Attributes:
        scheme: scheme of its training.
        layers: number of its layers.
        steps: numbers of steps at the measurements of the loss.
        times_s: processor time of one thread for training until then.
        losses: losses of averaged weights, on equal samples each time.
        tokens: number of trained tokens, for `double_tokens`.
        double_tokens: number of them with two experts, by layer.
        first_doubles: share of the tokens with two experts until the first measurement, over all layers.
        quality: accuracy in per cent, or perplexity, of held-out samples, each token with one expert (section
            5.4.2).
        quality_as_trained: the quality with the gating of training.
    """

    scheme: TrainingScheme
    layers: int
    steps: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    double_tokens: NDArray[np.int64] = field(init=False)
    first_doubles: float = float("nan")
    quality: float = float("nan")
    quality_as_trained: float = float("nan")

    def __post_init__(self) -> None:
        self.double_tokens = np.zeros(self.layers, dtype=np.int64)

    @property
    def doubles(self) -> list[float]:
        """Share of the trained tokens with two experts, by layer; 0 in a dense model."""
        return [int(doubles) / max(self.tokens, 1) for doubles in self.double_tokens]

    def reaches(self, loss: float) -> bool:
        """Return whether the loss was ever this low."""
        return min(self.losses) <= loss

    def time_to(self, loss: float) -> float:
        """Return the first time at which the loss was this low, interpolated between measurements; infinite
        if never."""
        return _first(self.times_s, self.losses, loss)

    def steps_to(self, loss: float) -> float:
        """Return the first step at which the loss was this low, interpolated as in `time_to`."""
        return _first([float(step) for step in self.steps], self.losses, loss)


def _first(places: list[float], losses: list[float], loss: float) -> float:
    before = (0.0, float("inf"))
    for place, seen in zip(places, losses, strict=True):
        if seen <= loss:
            share = 1.0 if before[1] == float("inf") else (before[1] - loss) / (before[1] - seen)
            return before[0] + share * (place - before[0])
        before = (place, seen)
    return float("inf")


class Training:
    """The training of a new model: its optimizer, the order of its samples, and the average of its weights,
    whose loss and quality are measured."""

    def __init__(self, task: LearningTask, scheme: TrainingScheme, seed: int) -> None:
        """Draw the weights; the seed determines them and the order, equally for all schemes."""
        self._task = task
        self._scheme = scheme
        torch.manual_seed(seed)
        self._model = task.dense().train()
        if scheme.gating is not None:
            convert(self._model, LayerConversion(experts=task.size.experts, seed=seed), scheme.gating)
        self._averaged = AveragedModel(self._model, multi_avg_fn=get_ema_multi_avg_fn(_KEPT))
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=task.learning_rate, weight_decay=0.0, fused=True
        )
        self._curriculum = Curriculum(len(task.training), task.size.layers, seed)
        # Without records, a curriculum draws a new order for each epoch.
        self._batches = (
            numbers for epoch in count() for numbers in self._curriculum.batches(epoch, task.batch_size)
        )
        self._probe = task.training.select(torch.arange(min(task.probed, len(task.training))))
        self.run = ModelRun(scheme, task.size.layers)

    def advance(self, steps: int) -> None:
        """Train for some steps, then measure the loss. The measurement and the averaging of weights do not
        count as time."""
        time_s, done = (self.run.times_s[-1], self.run.steps[-1]) if self.run.steps else (0.0, 0)
        for step in range(done + 1, done + steps + 1):
            started_s = time.thread_time()
            numbers = next(self._batches)
            for group in self._optimizer.param_groups:
                group["lr"] = self._task.learning_rate * min(step / _WARM_UP_STEPS, 1.0)
            self._step(numbers)
            time_s += time.thread_time() - started_s
            self._averaged.update_parameters(self._model)
        if not self.run.steps:
            self.run.first_doubles = float(np.mean(self.run.doubles))
        self.run.steps.append(done + steps)
        self.run.times_s.append(time_s)
        self.run.losses.append(self._loss())

    def finish(self) -> ModelRun:
        """Measure the quality."""
        self.run.quality_as_trained = self._quality()
        set_gating(self._averaged.module, Gating("top1"))
        self.run.quality = self._quality()
        return self.run

    def _step(self, numbers: NDArray[np.int64]) -> None:
        batch = self._task.training.select(torch.from_numpy(numbers))
        loss = self._model(input_ids=batch.tokens, attention_mask=batch.mask, labels=batch.labels).loss
        if self._scheme.gating is not None:
            passes = pop_passes(self._model)
            loss = loss + _BALANCE * auxiliary_loss(passes)
            layers = passes.values()
            self.run.tokens += int(batch.mask.sum())
            self.run.double_tokens += np.array([int(layer.routing.is_double.sum()) for layer in layers])
            if self._scheme.curriculum:
                ratios = torch.stack([layer.double_ratio_of_sequences for layer in layers])
                self._curriculum.record(numbers, ratios.numpy(), batch.mask.sum(dim=1).numpy())
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), _LARGEST_GRADIENT)
        self._optimizer.step()

    @torch.no_grad()
    def _loss(self) -> float:
        """Return the loss of the task alone."""
        probe, model = self._probe, self._averaged.module.eval()
        loss = model(input_ids=probe.tokens, attention_mask=probe.mask, labels=probe.labels).loss
        pop_passes(model)
        return float(loss)

    @torch.no_grad()
    def _quality(self) -> float:
        held_out, model = self._task.held_out, self._averaged.module.eval()
        logits = model(input_ids=held_out.tokens, attention_mask=held_out.mask).logits
        pop_passes(model)
        if held_out.labels.ndim == 1:
            return 100.0 * float((logits.argmax(dim=-1) == held_out.labels).double().mean())
        return float(cross_entropy(logits[:, :-1].flatten(0, 1), held_out.labels[:, 1:].flatten()).exp())
