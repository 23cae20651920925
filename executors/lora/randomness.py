"""Random numbers that belong to one task, independent of the rest of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import torch
from torch import Tensor

_LEVELS = 1 << 16
_DRAWS_PER_WORD = 4


def derive_seed(seed: int, *labels: str | int) -> int:
    """Return a 63-bit seed for one use, unrelated to those for other uses and of other tasks."""
    text = "/".join(str(part) for part in (seed, *labels))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def keep_mask(rows: int, columns: int, dropout: float, generator: torch.Generator) -> Tensor:
    """Draw a dropout mask: boolean ``[rows, columns]``, true (kept) with probability ``1 - dropout``.

    One 64-bit draw yields four 16-bit ones, since drawing dominates the cost of masks: on a CPU this is
    several times as fast as ``bernoulli_``. The probability is rounded to a multiple of 2**-16.
    """
    words = -(-rows * columns // _DRAWS_PER_WORD)
    draws = torch.empty(words, dtype=torch.int64, device=generator.device)
    draws.random_(-(2**63), None, generator=generator)
    threshold = round(dropout * _LEVELS) - _LEVELS // 2
    return (draws.view(torch.int16)[: rows * columns] >= threshold).view(rows, columns)


class Masks(Protocol):
    """Source of the dropout masks of one adapter at one layer."""

    def draw(self, rows: int, columns: int, dropout: float) -> Tensor:
        """Return the mask of a pass over its rows, see `keep_mask`."""


@dataclass(frozen=True)
class StreamedMasks:
    """Consecutive masks from a stream that all layers share."""

    generator: torch.Generator

    def draw(self, rows: int, columns: int, dropout: float) -> Tensor:
        return keep_mask(rows, columns, dropout, self.generator)


@dataclass(frozen=True)
class SequenceMasks:
    """A mask per sequence, in any pass, and the same when the pass is repeated."""

    generator: torch.Generator
    seed: int
    """Seed of this layer and step."""
    sequences: Sequence[tuple[int, int]]
    """(place in the step's batch, tokens) of the sequences in the pass, in order."""

    def draw(self, rows: int, columns: int, dropout: float) -> Tensor:
        parts = []
        for place, tokens in self.sequences:
            self.generator.manual_seed(derive_seed(self.seed, place))
            parts.append(keep_mask(tokens, columns, dropout, self.generator))
        mask = torch.cat(parts)
        assert len(mask) == rows, "the sequences are those of the pass"
        return mask
