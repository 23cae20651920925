"""Training of one adapter on one rank, alone or with others: the gradient of the whole global batch.

A step over w ranks and s accumulations adds up the gradients of the token losses of all sequences, and
divides by the tokens of the whole batch. So it is the gradient of the mean token loss of the global batch,
for any shares of ranks and micro-batches.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from executors.gang.faults import DivergedError
from executors.lora.adapted_pass import adapters_placed, loss_logits, precision
from executors.lora.adapter import AdapterLayout, TrainedAdapter
from executors.lora.batch import PackedBatch, TokenSequence, pack
from executors.lora.fused_layers import HeadUse, SiteAdapter
from executors.lora.lora_task import AdapterState, LoraTask
from executors.lora.randomness import SequenceMasks, derive_seed
from executors.lora.segment_products import Rows
from executors.lora.shared_base import SharedBase
from executors.throttle import throttle

AddUp = Callable[[Tensor], None]
"""Adds a vector up over all ranks of a task, in place."""


@dataclass(frozen=True)
class Sample:
    """A sequence with its place in a step's global batch."""

    place: int
    source: int
    """Index of its job in the task."""
    sequence: TokenSequence


@dataclass(frozen=True)
class TrainingStep:
    """Result of a step, the same on all ranks."""

    losses: tuple[float | None, ...]
    """By source, the mean token loss before the update; None if the step had no sequence of it."""
    signals: tuple[float, ...]
    """Sums of the ranks' signals."""
    step_s: float
    exchange_s: float


@dataclass(frozen=True)
class InTraining:
    """An adapter in a pass of a step, with dropout: see `Adapted`."""

    adapter: TrainedAdapter
    generator: torch.Generator
    step: int
    sequences: tuple[tuple[int, int], ...]
    """(place in the step's global batch, tokens) of the sequences in the pass."""
    loss_rows: tuple[tuple[int, int], ...]
    """(head, rows that bear loss), in the order of the rows."""

    @property
    def layout(self) -> AdapterLayout:
        return self.adapter.layout

    def head_uses(self, loss_rows: int) -> Sequence[HeadUse]:
        assert sum(rows for _, rows in self.loss_rows) == loss_rows, "the rows are those of the pass"
        return [(self.adapter.heads[head], rows) for head, rows in self.loss_rows]

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        seed = derive_seed(self.adapter.task.seed, "dropout", self.step, site)
        return self.adapter.site_adapter(site, rows, SequenceMasks(self.generator, seed, self.sequences))


@dataclass(frozen=True)
class InUse:
    """An adapter as one job uses it without training: see `Adapted`."""

    adapter: TrainedAdapter
    head: int = 0
    """Number of the job's head."""

    @property
    def layout(self) -> AdapterLayout:
        return self.adapter.layout

    def head_uses(self, loss_rows: int) -> Sequence[HeadUse]:
        return [(self.adapter.heads[self.head], loss_rows)]

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        trained = self.adapter.site_adapter(site, rows, SequenceMasks(torch.Generator(), 0, ()))
        return SiteAdapter(trained.down, trained.up, trained.scaling, 0.0, trained.masks, rows)


class Trainer:
    """An adapter on a rank's device.

    Attributes:
        base: base model, with the layers that may have an adapter.
        adapter: the adapter, with its optimizer.
        micro_batch_size: most sequences per pass.
    """

    def __init__(
        self,
        base: SharedBase,
        adapter: TrainedAdapter,
        device: torch.device,
        micro_batch_size: int,
        *,
        heads: Sequence[int] = (0,),
        checkpoints_activations: bool = False,
        least_sequence_s: float = 0.0,
    ) -> None:
        """Train an adapter.

        Args:
            heads: index of the adapter head, per source.
            least_sequence_s: least time per sequence (s); faster steps sleep for the rest.
        """
        self.base = base
        self.adapter = adapter
        self.micro_batch_size = micro_batch_size
        self._device = device
        self._masks = torch.Generator(device)
        self._heads = heads
        self._checkpoints_activations = checkpoints_activations
        self._least_sequence_s = least_sequence_s

    @property
    def device(self) -> torch.device:
        return self._device

    def step(
        self, own: Sequence[Sample], number: int, sources: int, signals: Sequence[float], add_up: AddUp
    ) -> TrainingStep:
        """Run a step together with the other ranks.

        Args:
            own: this rank's share of the global batch; may be empty.
            number: number of the step, from 0; determines dropout masks.
            sources: number of jobs that the batch may have sequences of.
            signals: numbers that this rank sends to all.
            add_up: sum over all ranks. If it raises, the adapter is unchanged.

        Raises:
            DivergedError: loss or gradient is not finite. The adapter is unchanged on all ranks.
        """
        started_s = time.monotonic()
        sums = self.accumulate(own, number, sources)
        values = torch.cat([sums.flatten(), torch.tensor(list(signals), device=self._device)])
        exchange_s = self._add_up(values, add_up)
        throttle(started_s, len(own), self._least_sequence_s)
        (*numbers,) = values.tolist()
        pairs = [(numbers[2 * source], numbers[2 * source + 1]) for source in range(sources)]
        self.adapter.gradient.div_(math.fsum(tokens for _, tokens in pairs))
        losses = tuple(loss / tokens if tokens else None for loss, tokens in pairs)
        for loss in losses:
            raise_if_diverged("loss", loss, number)
        raise_if_diverged("gradient norm", self.adapter.update(), number)
        step_s = time.monotonic() - started_s
        return TrainingStep(losses, tuple(numbers[2 * sources :]), step_s, exchange_s)

    def accumulate(self, own: Sequence[Sample], number: int, sources: int) -> Tensor:
        """Compute the gradient of `own`'s summed token losses in the adapter, one micro-batch at a time.

        Returns:
            by source, (sum of the token losses, tokens): float32 `[sources, 2]`.
        """
        self.adapter.clear()
        sums = torch.zeros(sources, 2, device=self._device)
        for start in range(0, len(own), self.micro_batch_size):
            # Sorted by job, so that `split` gives each job's losses.
            part = sorted(own[start : start + self.micro_batch_size], key=lambda sample: sample.source)
            batch = pack([[sample.sequence for sample in part]], self._device)
            counts = [0] * sources
            for sample in part:
                counts[sample.source] += sample.sequence.loss_tokens
            with self._pass(batch, part, counts, number):
                token_losses = self._token_losses(batch)
                token_losses.sum().backward()
            for source, losses in enumerate(token_losses.detach().split(counts)):
                sums[source, 0] += losses.sum()
                sums[source, 1] += counts[source]
        return sums

    def count_right(self, sequences: Sequence[TokenSequence], head: int = 0) -> tuple[int, int]:
        """Count the correct predictions of labels that bear loss, and these labels.

        Predictions are made without dropout.

        Args:
            head: number of the adapter's head.
        """
        right = total = 0
        size = 2 * self.micro_batch_size  # no activations are kept
        for start in range(0, len(sequences), size):
            batch = pack([sequences[start : start + size]], self._device)
            with torch.no_grad(), adapters_placed(self.base, [InUse(self.adapter, head)], batch):
                with precision(self._device):
                    logits = loss_logits(self.base, batch)
                right += int((logits.argmax(-1) == batch.labels).sum())
            total += len(batch.labels)
        return right, total

    @contextmanager
    def _pass(
        self, batch: PackedBatch, part: Sequence[Sample], counts: Sequence[int], number: int
    ) -> Iterator[None]:
        sequences = tuple((sample.place, len(sample.sequence.token_ids)) for sample in part)
        loss_rows = tuple(zip(self._heads, counts, strict=False))  # a measurement has one source only
        micro_batch = InTraining(self.adapter, self._masks, number, sequences, loss_rows)
        with adapters_placed(self.base, [micro_batch], batch):
            if self._checkpoints_activations:
                with activations_checkpointed(self.base.model):
                    yield
            else:
                yield

    def _token_losses(self, batch: PackedBatch) -> Tensor:
        with precision(self._device):
            logits = loss_logits(self.base, batch)
        return cross_entropy(logits.float(), batch.labels, reduction="none")

    def _add_up(self, values: Tensor, add_up: AddUp) -> float:
        """Add gradient and numbers up over all ranks at once, and return the duration (s)."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        started_s = time.monotonic()
        gradient = self.adapter.gradient
        everything = torch.cat([gradient, values])
        add_up(everything)
        gradient.copy_(everything[: len(gradient)])
        values.copy_(everything[len(gradient) :])
        return time.monotonic() - started_s


def raise_if_diverged(name: str, value: float | None, step: int) -> None:
    """Check that a number of a step is finite.

    Raises:
        DivergedError: it is not.
    """
    if value is not None and not math.isfinite(value):
        raise DivergedError(f"{name}: {value} in step {step}: the training has diverged")


def new_adapter(
    task: LoraTask, layout: AdapterLayout, state: AdapterState, device: torch.device
) -> TrainedAdapter:
    """Copy an adapter to the device; on a GPU by a stream of its own, in parallel to its computations.

    Raises:
        ValueError: the state does not fit the layout.
    """
    if device.type != "cuda":
        return TrainedAdapter(task, layout, state, device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        adapter = TrainedAdapter(task, layout, state.pinned(), device)
    stream.synchronize()
    for tensor in (*adapter.tensors, adapter.gradient):
        # Keep the allocator from reusing this memory while the training stream uses it.
        tensor.record_stream(torch.cuda.current_stream(device))
    return adapter


@contextmanager
def activations_checkpointed(model: PreTrainedModel) -> Iterator[None]:
    """Let the model's layers compute their activations again in the backward pass instead of keeping them.

    Only the layers themselves are set to training, and no module inside them: so nothing draws dropout from
    global random state.

    Raises:
        ValueError: the architecture does not support it.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} does not support gradient checkpointing")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()
