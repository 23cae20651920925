"""One job's training over the stages of a pipeline, as each rank sees it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from executors.lora.batch import PackedBatch, TokenSequence, pack, tokenize
from executors.lora.dataset import Record
from executors.lora.task import TaskState
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.part import TaskPart
from executors.tuner.pipeline.partition import stage_of
from executors.tuner.pipeline.passes import StagePasses
from executors.tuner.pipeline.pool import Pipeline
from executors.tuner.pipeline.preparation import PreparedTask, read_batch, upcoming
from executors.tuner.pipeline.schedule import one_forward_one_backward, split
from executors.tuner.pipeline.states import gather_state

_FINGERPRINT_BYTES = 6
"""Fits the 53 bits that a float64 keeps."""


@dataclass(frozen=True)
class StepResult:
    """What a step came to, the same on all ranks.

    Attributes:
        loss: mean token loss of the batch before the update.
        gradient_norm: L2 norm over all stages before clipping. If it is not finite, nothing was updated on
            any rank.
    """

    loss: float
    gradient_norm: float


def load_task(pipeline: Pipeline, prepared: PreparedTask) -> "PipelineTask":
    """Bring a prepared job to the device; it is this rank's part of it that can `step`."""
    stage = pipeline.stage(prepared.plan.direction)
    with pipeline.trace.span("load", prepared.plan.task.job_id, prepared.piece.micro_batches):
        pipeline.hold(stage, prepared.weights)
        part = TaskPart(prepared.layouts[stage], prepared.piece, pipeline.device)
    return PipelineTask(pipeline, prepared, part)


class PipelineTask:
    """A job that is trained. All ranks call the same methods in the same order.

    A step trains ``batch_size`` sequences, like a step of the engine, cut into micro-batches whose gradients
    add up. The loss is the mean over the tokens that are predicted in the whole batch.

    Attributes:
        pipeline: that trains it.
        plan: how it is trained.
    """

    def __init__(self, pipeline: Pipeline, prepared: PreparedTask, part: TaskPart) -> None:
        self.pipeline = pipeline
        self.plan = prepared.plan
        self._layouts = prepared.layouts
        self._dataset = prepared.dataset
        self._part = part
        nothing = torch.empty(0)
        self._standing = replace(
            prepared.piece, parameters=nothing, first_moment=nothing, second_moment=nothing
        )
        self._batch = prepared.first_batch
        self._stage = pipeline.stage(prepared.plan.direction)
        layers = pipeline.weights.partition[self._stage]
        self._passes = StagePasses(pipeline.structure, layers, pipeline.device)
        self._loss = 0.0

    @property
    def job_id(self) -> str:
        """Of the job."""
        return self.plan.task.job_id

    @property
    def samples_done(self) -> int:
        """Sequences used so far."""
        return self._standing.samples_done

    @property
    def finished(self) -> bool:
        """Whether all samples are used."""
        return self._standing.finished

    @property
    def next_is_last(self) -> bool:
        """Whether the next step uses the last samples: the one to take by `switch`, if another job waits."""
        left = self.plan.task.total_samples - self.samples_done
        return 0 < left <= self.plan.task.batch_size

    @property
    def part(self) -> TaskPart:
        """This rank's piece of the adapter."""
        return self._part

    def step(self) -> StepResult:
        """Train one batch.

        Raises:
            StageLostError: another rank is gone.
            ValueError: all samples are used, or the ranks do not train the same.
        """
        self.accumulate()
        return self.update(self.pipeline.group.control)

    def accumulate(self) -> None:
        """Run the next batch forwards and backwards; the first half of a step.

        This rank is done with it as soon as its own last micro-batch is; other ranks may not be.

        Raises:
            StageLostError: another rank is gone.
            ValueError: all samples are used.
        """
        if self.finished:
            raise ValueError(f"{self.job_id}: has used all its samples")
        group, trace, passes = self.pipeline.group, self.pipeline.trace, self._passes
        step = self._standing.micro_batches
        if not self._batch:
            tokenizer = self.pipeline.structure.base.tokenizer
            self._batch = read_batch(self._standing, self._dataset, tokenizer)
        batches = self._packed(self._batch)
        loss_tokens = sum(batch.loss_counts[0] for batch in batches)
        losses = []
        kept: dict[int, tuple[Tensor | None, Tensor]] = {}
        self._part.begin_step()
        for kind, number in one_forward_one_backward(self._stage, self.pipeline.world, len(batches)):
            if kind == "forward":
                received = self._receive_hidden(batches[number])
                with trace.span("forward", self.job_id, step):
                    adapters = self._part.site_batches(batches[number].input_ids.shape[1], (step, number))
                    output = passes.forward(batches[number], received, adapters)
                    if passes.is_last:
                        output = output / loss_tokens
                        losses.append(output.detach())
                if not passes.is_last:
                    group.activations.send(output.detach(), self._neighbour(1))
                kept[number] = received, output
            else:
                received, output = kept.pop(number)
                gradient = None
                if not passes.is_last:
                    gradient = group.gradients.receive(
                        output.shape, output.dtype, output.device, self._neighbour(1)
                    )
                with trace.span("backward", self.job_id, step):
                    back = passes.backward(output, gradient, received)
                if back is not None:
                    group.gradients.send(back, self._neighbour(-1))
        self._loss = float(torch.stack(losses).sum()) if losses else 0.0

    def update(self, channel: Channel) -> StepResult:
        """Exchange gradient norms with all ranks and update this rank's part; the second half of a step.

        Args:
            channel: over which to exchange.

        Raises:
            StageLostError: another rank is gone.
            ValueError: the ranks do not train the same.
        """
        world = self.pipeline.world
        norms = self._part.squared_norms()
        most = max(len(layers) for layers in self.pipeline.weights.partition)
        padding = [0.0] * (most - len(norms))
        told = channel.exchange([self._fingerprint(), self._loss, *norms, *padding])
        if len({numbers[0] for numbers in told}) > 1:
            raise ValueError(f"{self.job_id}: the ranks differ in the task, its data or their progress")
        loss = told[stage_of(world - 1, world, self.plan.direction)][1]
        norm = math.sqrt(math.fsum(number for numbers in told for number in numbers[2:]))
        with self.pipeline.trace.span("update", self.job_id, self._standing.micro_batches):
            self._part.update(norm)
        self._advance(updated=math.isfinite(norm))
        return StepResult(loss, norm)

    def evaluate(self, records: Sequence[Record]) -> float:
        """Mean token loss on some records, without dropout; nothing is changed.

        Args:
            records: the same on all ranks, at least one.

        Raises:
            StageLostError: another rank is gone.
            ValueError: there is no record, or one leaves nothing to predict.
        """
        if not records:
            raise ValueError(f"{self.job_id}: no records to evaluate on")
        task, passes = self.plan.task, self._passes
        tokenizer = self.pipeline.structure.base.tokenizer
        sequences = [tokenize(record, tokenizer, task.sequence_length) for record in records]
        loss, tokens = 0.0, 0
        # No more sequences at once than in training, which is known to fit.
        at_once = -(-task.batch_size // self.plan.micro_batches)
        for batch in self._packed(sequences, parts=-(-len(sequences) // at_once)):
            received = self._receive_hidden(batch)
            with torch.no_grad():
                adapters = self._part.site_batches(batch.input_ids.shape[1], None)
                output = passes.forward(batch, received, adapters)
            if passes.is_last:
                loss += float(output)
            else:
                self.pipeline.group.activations.send(output, self._neighbour(1))
            tokens += batch.loss_counts[0]
        return math.fsum(numbers[0] for numbers in self.pipeline.group.control.exchange([loss])) / tokens

    def state(self) -> TaskState | None:
        """The whole state, gathered to rank 0, for a checkpoint while the job goes on; None on other ranks.

        Raises:
            StageLostError: another rank is gone.
        """
        return self.store(self.pipeline.group.control)

    def store(self, channel: Channel) -> TaskState | None:
        """Like `state`, over a given channel."""
        with self.pipeline.trace.span("store", self.job_id, self._standing.micro_batches):
            vectors = self._part.to_host()
        return gather_state(
            self._standing, vectors, self._layouts, self.pipeline.rank, self.plan.direction, channel
        )

    def close(self) -> None:
        """Release the dataset."""
        self._dataset.close()

    def adopt(self) -> None:
        """On CUDA, tell the allocator that the calling thread's stream uses what another one brought."""
        if self.pipeline.device.type == "cuda":
            stream = torch.cuda.current_stream(self.pipeline.device)
            self._part.serve(stream)
            for tensor in self.pipeline.weights.tensors(self._stage):
                tensor.record_stream(stream)

    def _neighbour(self, distance: int) -> int:
        return stage_of(self._stage + distance, self.pipeline.world, self.plan.direction)

    def _receive_hidden(self, batch: PackedBatch) -> Tensor | None:
        if self._passes.is_first:
            return None
        structure = self.pipeline.structure
        features = structure.base.model.config.get_text_config().hidden_size
        received = self.pipeline.group.activations.receive(
            (1, batch.input_ids.shape[1], features),
            structure.dtype,
            self.pipeline.device,
            self._neighbour(-1),
        )
        return received.requires_grad_()

    def _packed(self, sequences: Sequence[TokenSequence], parts: int | None = None) -> list[PackedBatch]:
        pieces = split(sequences, self.plan.micro_batches if parts is None else parts)
        return [pack([piece], self.pipeline.device) for piece in pieces]

    def _fingerprint(self) -> float:
        """A number that differs, but for chance, if anything differs that decides a step."""
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
            cursor=upcoming(standing, len(self._dataset))[1],
        )
        self._batch = ()
