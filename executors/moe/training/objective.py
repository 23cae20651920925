"""Objectives of training: batches in a model's form, and their loss, for each kind of model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from executors.gang.batches import IGNORED, pad
from executors.lora.batch import TokenSequence

Call = Callable[..., Any]
"""A Hugging Face model, or its wrapper."""


class TrainingObjective(Protocol):
    """Objective of a kind of model on sequences."""

    def loss(self, call: Call, sequences: Sequence[TokenSequence], device: torch.device) -> Tensor:
        """Return the sum of the losses of all predictions in the sequences, at least one; a scalar."""


@dataclass(frozen=True)
class NextToken:
    """Objective of a causal language model."""

    def loss(self, call: Call, sequences: Sequence[TokenSequence], device: torch.device) -> Tensor:
        batch = pad(sequences, device)
        logits = call(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
        return _summed(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())


@dataclass(frozen=True)
class Label:
    """Objective of a sequence classifier.

    Attributes:
        pad_token_id: token after the end of a sequence, by which some models find its last one.
    """

    pad_token_id: int

    def loss(self, call: Call, sequences: Sequence[TokenSequence], device: torch.device) -> Tensor:
        input_ids, attention_mask = _side_by_side(
            [sequence.token_ids for sequence in sequences], self.pad_token_id, device
        )
        logits = call(input_ids=input_ids, attention_mask=attention_mask).logits
        return _summed(logits, torch.tensor([sequence.labels[0] for sequence in sequences], device=device))


@dataclass(frozen=True)
class Translation:
    """Objective of a model with an encoder, which reads the prompt, and a decoder, which writes the
    completion.

    Attributes:
        start_token_id: first token of the decoder.
    """

    start_token_id: int

    def loss(self, call: Call, sequences: Sequence[TokenSequence], device: torch.device) -> Tensor:
        prompts = [sequence.token_ids[: sequence.loss_rows[0] + 1] for sequence in sequences]
        completions = [list(sequence.labels) for sequence in sequences]
        input_ids, attention_mask = _side_by_side(prompts, 0, device)
        before, decoder_mask = _side_by_side(
            [[self.start_token_id, *tokens[:-1]] for tokens in completions], 0, device
        )
        labels, _ = _side_by_side(completions, IGNORED, device)
        logits = call(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=before,
            decoder_attention_mask=decoder_mask,
            use_cache=False,
        ).logits
        return _summed(logits.flatten(0, 1), labels.flatten())


def _side_by_side(rows: Sequence[Sequence[int]], filler: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of tokens, padded on the right, and their mask: int64 `[rows, tokens]` each."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    filled = torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])
    is_token = (torch.arange(longest) < lengths[:, None]).long()
    return filled.to(device), is_token.to(device)


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    wide = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(logits.to(wide), labels, ignore_index=IGNORED, reduction="sum")
