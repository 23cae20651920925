"""A job's training state in one rank, and a step of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from executors.gang.batches import IGNORED, global_batch, pad
from executors.gang.checkpoints import Position
from executors.gang.faults import DivergedError
from executors.gang.models import ModelError
from executors.gang.shares import share
from executors.gang.trainable_model import TrainableModel, longest_sequence_tokens
from executors.lora.batch import TokenSequence
from executors.lora.dataset import JsonlDataset
from executors.lora.randomness import derive_seed
from schemas.elastic.workload import ElasticWorkload

_FIRST_MOMENT_PREFIX = "exp_avg."
_SECOND_MOMENT_PREFIX = "exp_avg_sq."


@dataclass(frozen=True)
class SequenceShare:
    """One rank's part of a global batch."""

    first: int
    """Place of its first sequence in the batch."""
    sequences: Sequence[TokenSequence]

    @property
    def loss_tokens(self) -> int:
        """Number of tokens that are predicted."""
        return sum(sequence.loss_tokens for sequence in self.sequences)


class DataParallelTrainer:
    """A model, AdamW's moments and a position in the data. All ranks of a job hold the same between steps.

    The loss of a step is the mean over all tokens that are predicted in the global batch. Each rank adds up
    the gradient of its own share, micro-batch by micro-batch, divided by the tokens of the whole batch; the
    sum over the ranks is the gradient of the whole batch, for any shares.

    Attributes:
        workload: work of the job.
        position: position of the training; determines the next batch, and so the whole state except for
            rounding.
    """

    def __init__(self, workload: ElasticWorkload, model: TrainableModel, dataset: JsonlDataset) -> None:
        """Start at the first sample.

        Raises:
            ModelError: the sequences of the job are too long for the model.
        """
        self.workload = workload
        self._hyperparameters = workload.hyperparameters
        longest = longest_sequence_tokens(model.module)
        if longest is not None and self._hyperparameters.sequence_length > longest:
            length = self._hyperparameters.sequence_length
            raise ModelError(workload.model, f"takes {longest} tokens, the job's sequences have {length}")
        self.model = model
        self.dataset = dataset
        self.position = Position()
        self._parameters = dict(model.parameters())
        self._device = next(iter(self._parameters.values())).device
        # One vector for all gradients, so that a step adds them up over the ranks at once; the last
        # element is for the loss.
        size = sum(parameter.numel() for parameter in self._parameters.values())
        self._sums = torch.zeros(size + 1, device=self._device)
        self._gradient = self._sums[:-1]
        start = 0
        for parameter in self._parameters.values():
            parameter.grad = self._gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=self._hyperparameters.learning_rate,
            weight_decay=self._hyperparameters.weight_decay,
            fused=True,
        )
        for parameter in self._parameters.values():
            self._optimizer.state[parameter] = {
                "step": torch.zeros((), device=self._device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def warm_up(self) -> None:
        """Run one sample forwards and backwards, and discard the gradient: the first pass of a process takes
        longer, so it runs before others wait for it.

        Raises:
            ValueError: a record leaves nothing to predict.
        """
        self._loss(self.share(0, len(self._batch())).sequences).backward()
        self._sums.zero_()

    def share(self, rank: int, world: int) -> SequenceShare:
        """Return the part of the next step's batch that a rank trains.

        Raises:
            ValueError: a record leaves nothing to predict.
        """
        batch = self._batch()
        places = share(len(batch), rank, world)
        sequences = [
            self.dataset.tokenized(batch[place], self.model.tokenizer, self._hyperparameters.sequence_length)
            for place in places
        ]
        return SequenceShare(places.start, sequences)

    def step(self, own: SequenceShare, loss_tokens: int, add_up: Callable[[Tensor], None]) -> None:
        """Run a step together with the other ranks.

        Args:
            own: this rank's share.
            loss_tokens: tokens of the global batch, over all shares.
            add_up: adds a vector up over all ranks, in place. If it raises, the state is unchanged.

        Raises:
            DivergedError: loss or gradient is not finite. All ranks raise it, and leave the model unchanged.
        """
        self._sums.zero_()
        micro = self._hyperparameters.micro_batch_size
        for start in range(0, len(own.sequences), micro):
            # Masks are drawn from a new seed for each micro-batch, so that they do not depend on earlier
            # steps.
            place = self.position.samples_done + own.first + start
            torch.manual_seed(derive_seed(self._hyperparameters.seed, "dropout", place))
            loss = self._loss(own.sequences[start : start + micro]) / loss_tokens
            loss.backward()
            self._sums[-1] += loss.detach()
        add_up(self._sums)
        norm = float(torch.linalg.vector_norm(self._gradient))
        loss_value = float(self._sums[-1])
        if not (math.isfinite(norm) and math.isfinite(loss_value)):
            raise DivergedError(
                f"the training has diverged: loss {loss_value}, gradient norm {norm} after "
                f"{self.position.samples_done} samples"
            )
        if norm > self._hyperparameters.max_gradient_norm:
            self._gradient.mul_(self._hyperparameters.max_gradient_norm / norm)
        self._optimizer.step()
        done = self.position
        self.position = Position(done.samples_done + len(self._batch()), done.steps + 1, loss_value)

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and moments by name, without a copy: writing to them changes the state."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            moments = self._optimizer.state[parameter]
            tensors[name] = parameter.detach()
            tensors[_FIRST_MOMENT_PREFIX + name] = moments["exp_avg"]
            tensors[_SECOND_MOMENT_PREFIX + name] = moments["exp_avg_sq"]
        return tensors

    def move_to(self, position: Position) -> None:
        """Set the position, once `tensors` are those of this position."""
        self.position = position
        for moments in self._optimizer.state.values():
            moments["step"].fill_(position.steps)

    def _batch(self) -> list[int]:
        return global_batch(
            len(self.dataset),
            self._hyperparameters.seed,
            self.position.samples_done,
            self._hyperparameters.global_batch_size,
            self.workload.work_samples,
        )

    def _loss(self, sequences: Sequence[TokenSequence]) -> Tensor:
        batch = pad(sequences, self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            logits = self.model.module(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
            ).logits
        return cross_entropy(
            logits[:, :-1].float().flatten(0, 1),
            batch.labels[:, 1:].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
