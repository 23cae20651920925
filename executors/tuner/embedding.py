"""Embeddings of a job by the effect of its data on the frozen base model: Task2Vec and Task2Feat, as vectors
of one length.

Task2Vec (Achille et al., "Task2Vec: Task Embedding for Meta-Learning", ICCV 2019): the diagonal Fisher
information of the shared backbone on the data. Task2Feat: the mean of the penultimate layer's outputs. LEEP
(Nguyen et al., ICML 2020) needs a source model's predictions for the target's data, see `source_predictions`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from executors.lora.adapted_pass import adapters_placed, loss_logits, precision
from executors.lora.batch import TokenSequence, pack
from executors.lora.objective import last_outputs
from executors.lora.shared_base import SharedBase
from executors.tuner.training import InUse, Trainer
from schemas.merging.reports import MAX_EMBEDDING

_MOST_BLOCKS = 8


@dataclass(frozen=True)
class ParameterGroups:
    """Groups of the backbone's parameters; a value of the embedding is the mean over one group.

    Each weight matrix is cut into blocks of neighbouring rows, as many as fit an embedding. In a model with
    too many matrices, neighbouring matrices share a value. Groups depend only on the base model, so the
    embeddings of all its jobs have one length. Biases and scales of norms are left out.
    """

    parameters: tuple[tuple[nn.Parameter, int], ...]
    """Each parameter, with the number of its first block."""
    blocks: int
    """Blocks per matrix."""
    merged: int
    """Matrices per value."""
    length: int

    @classmethod
    def of(cls, base: SharedBase) -> "ParameterGroups":
        """Return the groups of a model, with tied weights counted once. A head of which each job has its own
        is not part of the backbone."""
        own = {id(tensor) for tensor in base.head_tensors.values()}
        matrices = [each for each in base.model.parameters() if each.dim() >= 2 and id(each) not in own]
        blocks = max(1, min(_MOST_BLOCKS, MAX_EMBEDDING // len(matrices)))
        merged = math.ceil(len(matrices) / MAX_EMBEDDING)
        numbered = tuple(
            (parameter, index * blocks // merged if blocks > 1 else index // merged)
            for index, parameter in enumerate(matrices)
        )
        return cls(numbered, blocks, merged, math.ceil(len(matrices) / merged) * blocks)


@dataclass
class _Sums:
    squares: Tensor
    counts: Tensor
    handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)


@dataclass(frozen=True)
class Embeddings:
    """Embeddings measured on a sample of a job's data."""

    fisher: tuple[float, ...]
    features: tuple[float, ...]
    samples: int
    """Number of records used."""


def embed(base: SharedBase, sequences: Sequence[TokenSequence], deadline_s: float) -> Embeddings:
    """Compute both embeddings record by record: from the first record in any case, from others until the
    deadline.

    The Fisher information is the empirical one, with the data's own labels: E[(d log p(y|x) / d w)^2], of the
    mean token loss of a record. Task2Vec fits a head to the task and draws labels from the model's
    prediction. A language model has one head for all tasks, so only the labels in the data distinguish two
    tasks on the same inputs. A classifier's head is here the base model's, which no task has trained.

    The backbone's weights have gradients for this pass only, and keep their values.

    Args:
        sequences: at least one.
        deadline_s: on the monotonic clock.
    """
    groups = ParameterGroups.of(base)
    device = next(base.model.parameters()).device
    features: Tensor | None = None
    used = 0
    with _squares_gathered(groups, device) as sums:
        for sequence in sequences:
            batch = pack([[sequence]], device)
            with precision(device):
                hidden = last_outputs(base.model, base.objective, batch)
                logits = base.objective.logits(base.model, hidden[batch.loss_rows])
            cross_entropy(logits.float(), batch.labels).backward()
            mean = hidden.detach().double().mean(0)
            features = mean if features is None else features + mean
            used += 1
            if time.monotonic() >= deadline_s:
                break
        fisher = sums.squares / (sums.counts * used)
    assert features is not None, "there is a record"
    return Embeddings(tuple(fisher.tolist()), tuple(_shortened(features / used).tolist()), used)


def mean_features(base: SharedBase, sequences: Sequence[TokenSequence]) -> tuple[float, ...]:
    """Compute only the features of `embed`, without the gradients of the Fisher information, to measure the
    cost of Task2Feat.

    Args:
        sequences: at least one.
    """
    device = next(base.model.parameters()).device
    total: Tensor | None = None
    for sequence in sequences:
        with torch.no_grad(), precision(device):
            hidden = last_outputs(base.model, base.objective, pack([[sequence]], device))
        mean = hidden.double().mean(0)
        total = mean if total is None else total + mean
    assert total is not None, "there is a record"
    return tuple(_shortened(total / len(sequences)).tolist())


@contextmanager
def _squares_gathered(groups: ParameterGroups, device: torch.device) -> Iterator[_Sums]:
    """Within the block, add up squared gradients by group as soon as a backward pass computes them, and free
    the gradients, to save the memory of a whole model's gradients."""
    sums = _Sums(
        squares=torch.zeros(groups.length, dtype=torch.float64, device=device),
        counts=torch.zeros(groups.length, dtype=torch.float64, device=device),
    )
    for parameter, first in groups.parameters:
        parts = parameter.tensor_split(groups.blocks)
        for number, part in enumerate(parts):
            sums.counts[first + number] += part.numel()
        parameter.requires_grad_(True)
        sums.handles.append(
            parameter.register_post_accumulate_grad_hook(_gatherer(sums, first, groups.blocks))
        )
    # A matrix with fewer rows than blocks has empty blocks: they stay zero.
    sums.counts.clamp_(min=1.0)
    try:
        yield sums
    finally:
        for handle in sums.handles:
            handle.remove()
        for parameter, _ in groups.parameters:
            parameter.requires_grad_(False)
            parameter.grad = None


def _gatherer(sums: _Sums, first: int, blocks: int) -> Callable[[Tensor], None]:
    def gather(parameter: Tensor) -> None:
        assert parameter.grad is not None, "it was accumulated"
        for number, part in enumerate(parameter.grad.tensor_split(blocks)):
            sums.squares[first + number] += part.double().square().sum()
        parameter.grad = None

    return gather


def _shortened(features: Tensor) -> Tensor:
    """Return at most `MAX_EMBEDDING` values: means over neighbouring features if there are more."""
    if len(features) <= MAX_EMBEDDING:
        return features
    return torch.stack([part.mean() for part in features.tensor_split(MAX_EMBEDDING)])


def source_predictions(trainer: Trainer, sequences: Sequence[TokenSequence]) -> tuple[Tensor, Tensor]:
    """Return the inputs of LEEP: a source model's predictions for each row of the target's data that bears
    loss.

    Returns:
        probabilities of the source's labels (of a language model, its vocabulary), `[N, classes]`,
        and the target's labels, int64 `[N]`.
    """
    probabilities, labels = [], []
    for sequence in sequences:
        batch = pack([[sequence]], trainer.device)
        placed = adapters_placed(trainer.base, [InUse(trainer.adapter)], batch)
        with torch.no_grad(), placed, precision(trainer.device):
            logits = loss_logits(trainer.base, batch)
        probabilities.append(logits.float().softmax(-1).cpu())
        labels.append(batch.labels.cpu())
    return torch.cat(probabilities), torch.cat(labels)
