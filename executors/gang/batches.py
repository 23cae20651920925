"""The samples of a step, the same on any number of ranks; their division among ranks, and their padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executors.lora.batch import TokenSequence
from executors.lora.dataset import Cursor, next_indices

IGNORED = -100
"""A label that bears no loss."""


def global_batch(
    record_count: int, seed: int, samples_done: int, batch_size: int, work_samples: int
) -> list[int]:
    """Return the record indices of the step after `samples_done` samples, a function of its arguments only.

    Only the last batch may be smaller: it ends at `work_samples`.
    """
    cursor = Cursor(*divmod(samples_done, record_count))
    count = min(batch_size, work_samples - samples_done)
    return next_indices(record_count, seed, cursor, count)[0]


@dataclass(frozen=True)
class PaddedBatch:
    """Sequences as rows, padded on the right: int64 `[sequences, tokens]` each."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    """Tokens that bear loss, at their own places (not shifted); `IGNORED` elsewhere."""


def pad(sequences: Sequence[TokenSequence], device: torch.device) -> PaddedBatch:
    shape = (len(sequences), max(len(sequence.token_ids) for sequence in sequences))
    input_ids = torch.zeros(shape, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    labels = torch.full(shape, IGNORED, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens = torch.tensor(sequence.token_ids)
        input_ids[row, : len(tokens)] = tokens
        attention_mask[row, : len(tokens)] = 1
        labels[row, torch.tensor(sequence.loss_rows) + 1] = torch.tensor(sequence.labels)
    return PaddedBatch(input_ids.to(device), attention_mask.to(device), labels.to(device))


def share(count: int, rank: int, world: int) -> range:
    """Return the places of a rank in a batch of `count`: neighbours, in nearly equal numbers, in the order of
    the ranks. With more ranks than places, the last ranks have none."""
    size, longer = divmod(count, world)
    start = rank * size + min(rank, longer)
    return range(start, start + size + (rank < longer))
