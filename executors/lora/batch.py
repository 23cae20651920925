"""From records to one packed batch: the sequences of all tasks concatenated, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from executors.lora.dataset import Record


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed here."""

    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True)
class TokenSequence:
    """One record in tokens, at least two; the loss is on the tokens from ``loss_start`` (>= 1) on."""

    token_ids: list[int]
    loss_start: int

    @property
    def loss_tokens(self) -> int:
        """How many tokens are predicted."""
        return len(self.token_ids) - self.loss_start


def tokenize(record: Record, tokenizer: Tokenizer, sequence_length: int) -> TokenSequence:
    """Turn a record into at most ``sequence_length`` tokens, of which at least one bears loss.

    An end-of-sequence token closes the completion. A record that is too long loses the start of its prompt
    first, then the end of its completion.

    Raises:
        ValueError: fewer than two tokens come out, so there is nothing to predict.
    """
    prompt = tokenizer.encode(record.prompt, add_special_tokens=False) if record.prompt else []
    completion = tokenizer.encode(record.completion, add_special_tokens=False)
    if tokenizer.eos_token_id is not None:
        completion.append(tokenizer.eos_token_id)
    kept_of_prompt = max(sequence_length - len(completion), min(len(prompt), 1))
    prompt = prompt[max(len(prompt) - kept_of_prompt, 0) :]
    token_ids = (prompt + completion)[:sequence_length]
    if len(token_ids) < 2:
        raise ValueError("a record of one token leaves nothing to predict")
    return TokenSequence(token_ids, max(len(prompt), 1))


@dataclass(frozen=True)
class PackedBatch:
    """The micro-batches of several tasks as one sequence of T tokens, task after task.

    Attributes:
        input_ids: int64 ``[1, T]``.
        position_ids: int64 ``[1, T]``; starts at zero in each sequence.
        sequence_runs: (tokens, count) for each run of equally long neighbours among the sequences.
        task_rows: each task's token range ``[start, stop)``.
        loss_rows: int64 ``[N]``; the rows whose next token is predicted, task after task.
        labels: int64 ``[N]``; those next tokens.
        loss_counts: how many of the N belong to each task.
    """

    input_ids: Tensor
    position_ids: Tensor
    sequence_runs: tuple[tuple[int, int], ...]
    task_rows: tuple[tuple[int, int], ...]
    loss_rows: Tensor
    labels: Tensor
    loss_counts: tuple[int, ...]


def pack(micro_batches: Sequence[Sequence[TokenSequence]], device: torch.device) -> PackedBatch:
    """Lay the tasks' micro-batches end to end."""
    token_ids: list[int] = []
    positions: list[int] = []
    loss_rows: list[int] = []
    task_rows: list[tuple[int, int]] = []
    for micro_batch in micro_batches:
        start = len(token_ids)
        for sequence in micro_batch:
            first = len(token_ids)
            token_ids += sequence.token_ids
            positions += range(len(sequence.token_ids))
            loss_rows += range(first + sequence.loss_start - 1, len(token_ids) - 1)
        task_rows.append((start, len(token_ids)))
    lengths = [len(sequence.token_ids) for micro_batch in micro_batches for sequence in micro_batch]
    input_ids = torch.tensor([token_ids])
    rows = torch.tensor(loss_rows)
    return PackedBatch(
        input_ids=input_ids.to(device),
        position_ids=torch.tensor([positions], device=device),
        sequence_runs=tuple((length, len(list(run))) for length, run in groupby(lengths)),
        task_rows=tuple(task_rows),
        loss_rows=rows.to(device),
        labels=input_ids[0, rows + 1].to(device),
        loss_counts=tuple(sum(s.loss_tokens for s in micro_batch) for micro_batch in micro_batches),
    )
