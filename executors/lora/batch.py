"""Packing of token sequences into one batch: the sequences of all tasks concatenated, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor


class TokenSequence(Protocol):
    """One record in tokens, with its labels."""

    @property
    def token_ids(self) -> list[int]:
        """Its tokens, at least one."""

    @property
    def loss_rows(self) -> Sequence[int]:
        """Places of the tokens whose outputs bear loss, at least one, ascending."""

    @property
    def labels(self) -> Sequence[int]:
        """Correct tokens or classes at these places."""

    @property
    def loss_tokens(self) -> int:
        """Number of places that bear loss."""


@dataclass(frozen=True)
class TextSequence:
    """Text whose next tokens are predicted, at least two; the loss is on the tokens from ``loss_start``
    (>= 1) on."""

    token_ids: list[int]
    loss_start: int

    @property
    def loss_rows(self) -> range:
        """See `TokenSequence`, also for all methods below."""
        return range(self.loss_start - 1, len(self.token_ids) - 1)

    @property
    def labels(self) -> Sequence[int]:
        return self.token_ids[self.loss_start :]

    @property
    def loss_tokens(self) -> int:
        return len(self.token_ids) - self.loss_start


@dataclass(frozen=True)
class AnswerSequence:
    """Text with loss on the tokens in ``places``, ascending, without the first."""

    token_ids: list[int]
    places: tuple[int, ...]

    @property
    def loss_rows(self) -> Sequence[int]:
        """See `TokenSequence`, also for all methods below."""
        return tuple(place - 1 for place in self.places)

    @property
    def labels(self) -> Sequence[int]:
        return [self.token_ids[place] for place in self.places]

    @property
    def loss_tokens(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class LabelledSequence:
    """Text whose class is predicted, from the model's output at the token in place ``pooled``."""

    token_ids: list[int]
    pooled: int
    label: int

    @property
    def loss_rows(self) -> range:
        """See `TokenSequence`, also for all methods below."""
        return range(self.pooled, self.pooled + 1)

    @property
    def labels(self) -> Sequence[int]:
        return (self.label,)

    @property
    def loss_tokens(self) -> int:
        return 1


@dataclass(frozen=True)
class PackedBatch:
    """The micro-batches of several tasks as one sequence of T tokens, task after task.

    Attributes:
        input_ids: int64 ``[1, T]``.
        position_ids: int64 ``[1, T]``; starts at zero in each sequence.
        sequence_runs: (tokens, count) for each run of equally long neighbours among the sequences.
        task_rows: token range ``[start, stop)`` of each task.
        loss_rows: int64 ``[N]``; the rows that bear loss, task after task.
        labels: int64 ``[N]``; labels at these rows: next tokens, or classes.
        loss_counts: number of each task's rows among the N.
    """

    input_ids: Tensor
    position_ids: Tensor
    sequence_runs: tuple[tuple[int, int], ...]
    task_rows: tuple[tuple[int, int], ...]
    loss_rows: Tensor
    labels: Tensor
    loss_counts: tuple[int, ...]


def pack(micro_batches: Sequence[Sequence[TokenSequence]], device: torch.device) -> PackedBatch:
    """Concatenate the tasks' micro-batches."""
    token_ids: list[int] = []
    positions: list[int] = []
    loss_rows: list[int] = []
    labels: list[int] = []
    task_rows: list[tuple[int, int]] = []
    for micro_batch in micro_batches:
        start = len(token_ids)
        for sequence in micro_batch:
            first = len(token_ids)
            token_ids += sequence.token_ids
            positions += range(len(sequence.token_ids))
            loss_rows += [first + row for row in sequence.loss_rows]
            labels += sequence.labels
        task_rows.append((start, len(token_ids)))
    lengths = [len(sequence.token_ids) for micro_batch in micro_batches for sequence in micro_batch]
    return PackedBatch(
        input_ids=torch.tensor([token_ids], device=device),
        position_ids=torch.tensor([positions], device=device),
        sequence_runs=tuple((length, len(list(run))) for length, run in groupby(lengths)),
        task_rows=tuple(task_rows),
        loss_rows=torch.tensor(loss_rows, device=device),
        labels=torch.tensor(labels, device=device),
        loss_counts=tuple(sum(s.loss_tokens for s in micro_batch) for micro_batch in micro_batches),
    )
