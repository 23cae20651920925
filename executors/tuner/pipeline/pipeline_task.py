"""Training of one job over the stages of a pipeline, on each rank."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from executors.gang.batches import share
from executors.lora.adapted_pass import Adapted
from executors.lora.batch import PackedBatch, TokenSequence, pack
from executors.lora.lora_task import TaskState
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.partition import one_forward_one_backward, split
from executors.tuner.pipeline.pipeline_rank import PipelineRank
from executors.tuner.pipeline.preparation import PreparedTask, gather_state, read_batch, upcoming
from executors.tuner.pipeline.stage_part import StagePart, StagePasses
from executors.tuner.training import InTraining, InUse, activations_checkpointed

_FINGERPRINT_BYTES = 6
"""Bytes that fit the 53 bits of a float64."""


@dataclass(frozen=True)
class StepResult:
    """Result of a step, the same on all ranks except for `exchange_s`.

    Attributes:
        loss: mean token loss of the batch before the update.
        gradient_norm: L2 norm over all stages before clipping. If it is not finite, no rank has updated its
            part.
        signals: sums of the ranks' signals.
        exchange_s: time that this rank needed to exchange values, including waits (s).
    """

    loss: float
    gradient_norm: float
    signals: tuple[float, ...]
    exchange_s: float


@dataclass(frozen=True)
class SequenceEvaluation:
    """Evaluation of a job on some sequences, without dropout.

    Attributes:
        loss: mean token loss.
        right: tokens that are predicted correctly.
        tokens: tokens that are predicted.
    """

    loss: float
    right: int
    tokens: int


def load_task(pipeline: PipelineRank, prepared: PreparedTask) -> "PipelineTask":
    """Copy a prepared job to the device, and return this rank's part of it."""
    stage = pipeline.stage(prepared.plan.direction)
    part = StagePart(prepared.layouts[stage], prepared.piece, pipeline.device)
    return PipelineTask(pipeline, prepared, part)


class PipelineTask:
    """A job in training. All ranks call the same methods in the same order.

    A step trains ``batch_size`` sequences, like a step of the engine, cut into micro-batches whose gradients
    add up. The loss is the mean over the tokens that are predicted in the whole batch.

    Attributes:
        pipeline: pipeline that trains it.
        plan: plan of its training.
        computed_s: time of this rank's last end of the passes of a step, on the monotonic clock.
    """

    def __init__(self, pipeline: PipelineRank, prepared: PreparedTask, part: StagePart) -> None:
        self.pipeline = pipeline
        self.plan = prepared.plan
        self.computed_s = time.monotonic()
        self._structure = prepared.structure
        self._layouts = prepared.layouts
        self._data = prepared.data
        self._part = part
        nothing = torch.empty(0)
        self._standing = replace(
            prepared.piece, parameters=nothing, first_moment=nothing, second_moment=nothing
        )
        self._batch = prepared.first_batch
        self._stage = pipeline.stage(prepared.plan.direction)
        layers = pipeline.partition[self._stage]
        self._passes = StagePasses(prepared.structure, layers, pipeline.device)
        self._masks = torch.Generator(pipeline.device)
        self._loss = 0.0

    @property
    def job_id(self) -> str:
        return self.plan.task.job_id

    @property
    def finished(self) -> bool:
        return self._standing.finished

    @property
    def part(self) -> StagePart:
        """This rank's piece of the adapter."""
        return self._part

    def divide(self, micro_batches: int) -> None:
        """Set the number of micro-batches for later steps; the same on all ranks."""
        self.plan = replace(self.plan, micro_batches=micro_batches)

    def step(self, signals: Sequence[float] = ()) -> StepResult:
        """Train one batch.

        Args:
            signals: numbers that this rank sends to all, the same count on each rank.

        Raises:
            ValueError: all samples are used, or the ranks train different tasks.
        """
        self.accumulate()
        return self.update(self.pipeline.group.control, signals)

    def accumulate(self) -> None:
        """Run this pipeline's share of the next batch forwards and backwards; the first half of a step.

        Returns after this rank's own last micro-batch; other ranks may still run.

        Raises:
            ValueError: all samples are used.
        """
        if self.finished:
            raise ValueError(f"{self.job_id}: has used all its samples")
        if not self._batch:
            self._batch = read_batch(self._standing, self._data)
        model = self._structure.base.model
        checkpoints = self.plan.checkpoints_activations
        with activations_checkpointed(model) if checkpoints else nullcontext():
            self._run(split(self._share(len(self._batch)), self.plan.micro_batches))
        self.computed_s = time.monotonic()

    def _run(self, places: Sequence[Sequence[int]]) -> None:
        """Run micro-batches, given by the places of their sequences in the batch."""
        group, passes = self.pipeline.group, self._passes
        batches = [self._packed([self._batch[place] for place in part]) for part in places]
        adapters = [self._in_training(part) for part in places]
        loss_tokens = sum(sequence.loss_tokens for sequence in self._batch)
        losses = []
        kept: dict[int, tuple[Tensor | None, Tensor]] = {}
        self._part.adapter.clear()
        for kind, number in one_forward_one_backward(self._stage, self.pipeline.stages, len(batches)):
            batch, adapter = batches[number], adapters[number]
            if kind == "forward":
                received = self._receive_hidden(batch)
                output = passes.forward(batch, received, adapter)
                if passes.is_last:
                    output = cross_entropy(output, batch.labels, reduction="none").sum() / loss_tokens
                    losses.append(output.detach())
                else:
                    group.activations.send(output.detach(), self._neighbour(1))
                kept[number] = received, output
            else:
                received, output = kept.pop(number)
                gradient = None
                if not passes.is_last:
                    gradient = group.gradients.receive(
                        output.shape, output.dtype, output.device, self._neighbour(1)
                    )
                back = passes.backward(output, gradient, batch, received, adapter)
                if back is not None:
                    group.gradients.send(back, self._neighbour(-1))
        self._loss = float(torch.stack(losses).sum()) if losses else 0.0

    def update(self, channel: Channel, signals: Sequence[float] = ()) -> StepResult:
        """Exchange gradient norms with all ranks and update this rank's part; the second half of a step.

        Args:
            channel: channel of the exchange.
            signals: see `step`.

        Raises:
            ValueError: the ranks train different tasks.
        """
        started_s = time.monotonic()
        pipeline = self.pipeline
        channel.add_up_over_peers(self._part.adapter.gradient)
        norms = self._part.squared_norms()
        most = max(len(layout.norm_pieces) for layout in self._layouts)
        padding = [0.0] * (most - len(norms))
        gathered = channel.exchange([self._fingerprint(), self._loss, *signals, *norms, *padding])
        exchange_s = time.monotonic() - started_s
        if len({numbers[0] for numbers in gathered}) > 1:
            raise ValueError(f"{self.job_id}: the ranks differ in the task, its data or their progress")
        # Only last stages have a loss. All pipelines have the same gradient here.
        loss = math.fsum(numbers[1] for numbers in gathered)
        first = 2 + len(signals)
        sums = tuple(math.fsum(numbers[2 + index] for numbers in gathered) for index in range(len(signals)))
        norm = math.sqrt(
            math.fsum(number for numbers in gathered[: pipeline.stages] for number in numbers[first:])
        )
        self._part.adapter.update_as_part(norm)
        self._advance(updated=math.isfinite(norm))
        return StepResult(loss, norm, sums, exchange_s)

    def evaluate(self, sequences: Sequence[TokenSequence]) -> SequenceEvaluation:
        """Measure loss and accuracy on some sequences, without dropout; the task stays unchanged.

        Args:
            sequences: the same on all ranks, at least one.

        Raises:
            ValueError: there is no sequence.
        """
        if not sequences:
            raise ValueError(f"{self.job_id}: nothing to evaluate on")
        passes, adapter = self._passes, InUse(self._part.adapter)
        loss, right = 0.0, 0
        # At most the number of sequences of a training step, which is sure to fit.
        at_once = -(-len(self._share(self.plan.task.batch_size)) // self.plan.micro_batches) or 1
        mine = self._share(len(sequences))
        for part in split(mine, -(-len(mine) // at_once)):
            batch = self._packed([sequences[place] for place in part])
            received = self._receive_hidden(batch)
            with torch.no_grad():
                output = passes.forward(batch, received, adapter)
            if passes.is_last:
                loss += float(cross_entropy(output, batch.labels, reduction="none").sum())
                right += int((output.argmax(-1) == batch.labels).sum())
            else:
                self.pipeline.group.activations.send(output, self._neighbour(1))
        gathered = self.pipeline.group.control.exchange([loss, right])
        tokens = sum(sequence.loss_tokens for sequence in sequences)
        return SequenceEvaluation(
            loss=math.fsum(numbers[0] for numbers in gathered) / tokens,
            right=int(math.fsum(numbers[1] for numbers in gathered)),
            tokens=tokens,
        )

    def state(self) -> TaskState | None:
        """Gather the whole state to rank 0, for a checkpoint during training; None on other ranks."""
        return self.store(self.pipeline.group.control)

    def store(self, channel: Channel) -> TaskState | None:
        """Gather the state like `state`, over a given channel."""
        rank, vectors = self.pipeline.rank, self._part.to_host()
        return gather_state(self._standing, vectors, self._layouts, rank, self.plan.direction, channel)

    def close(self) -> None:
        self._data.dataset.close()

    def adopt(self) -> None:
        """On CUDA, mark memory that another stream has filled as used by the calling thread's stream."""
        if self.pipeline.device.type == "cuda":
            self._part.serve(torch.cuda.current_stream(self.pipeline.device))

    def _neighbour(self, distance: int) -> int:
        return self.pipeline.rank_of(self._stage + distance, self.plan.direction)

    def _share(self, count: int) -> range:
        """Return the places of this pipeline's share of `count` sequences."""
        return share(count, self.pipeline.replica, self.pipeline.replicas)

    def _in_training(self, places: Sequence[int]) -> Adapted:
        sequences = tuple((place, len(self._batch[place].token_ids)) for place in places)
        head = 0, sum(self._batch[place].loss_tokens for place in places)
        return InTraining(self._part.adapter, self._masks, self._standing.micro_batches, sequences, (head,))

    def _receive_hidden(self, batch: PackedBatch) -> Tensor | None:
        if self._passes.is_first:
            return None
        structure = self._structure
        features = structure.base.model.config.get_text_config().hidden_size
        received = self.pipeline.group.activations.receive(
            (1, batch.input_ids.shape[1], features),
            structure.dtype,
            self.pipeline.device,
            self._neighbour(-1),
        )
        return received.requires_grad_()

    def _packed(self, sequences: Sequence[TokenSequence]) -> PackedBatch:
        return pack([sequences], self.pipeline.device)

    def _fingerprint(self) -> float:
        """Return a hash of all values that a step depends on."""
        standing = self._standing
        text = f"{self.plan!r} {standing.dataset_digest} {standing.cursor} {standing.micro_batches}"
        digest = blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()
        return float(int.from_bytes(digest, "big"))

    def _advance(self, *, updated: bool) -> None:
        standing = self._standing
        self._standing = replace(
            standing,
            optimizer_steps=standing.optimizer_steps + updated,
            micro_batches=standing.micro_batches + 1,
            samples_done=standing.samples_done + len(self._batch),
            cursor=upcoming(standing, len(self._data))[1],
        )
        self._batch = ()
