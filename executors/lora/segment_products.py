"""Matrix products in which each segment of rows is multiplied by a separate matrix.

A segment is one task's token range. LoRA needs three products, for a matrix M ``[rank, features]`` and the
segment's rows X ``[tokens, features]``: narrowing ``X M^T``, widening a narrow result N by ``N M``, and the
gradient ``N^T X``. Three classes compute them with the same meaning; ``choose_products`` selects one:

- ``BatchedProducts`` when all segments have equal length and equal rank: one ``torch.bmm`` for all.
- ``GroupedProducts`` for ragged segments on CUDA, where a launch for each segment would leave the device
  idle: one ``torch.nn.functional.grouped_mm`` on bfloat16, with ranks padded to its 16-byte alignment.
- ``SeparateProducts`` otherwise. On a CPU a call costs a few microseconds and grouped_mm loops as well, so
  one product for each segment is fastest, and bit-identical to what the task alone would compute.

The first and the last store narrow results as ``[rank, tokens]``: BLAS is two to five times as fast with the
small dimension first, since the product's rows are then few and long.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, pad

Rows = tuple[int, int]

_GROUPED_ALIGNMENT_BYTES = 16


class SegmentProducts(Protocol):
    """Products of the segments' rows with the segments' own matrices.

    "Parts" are the segments of a ``[T, features]`` tensor, "matrices" one ``[rank, features]`` for each
    segment, "narrow" the segments' narrow results, each in the form of the class.
    """

    def parts(self, rows: Tensor) -> Any:
        """View the segments of ``[T, features]``."""

    def gather(self, matrices: Sequence[Tensor]) -> Any:
        """Return one matrix for each segment in the form of the products."""

    def narrow(self, parts: Any, matrices: Any) -> Any:
        """Return ``parts[k] @ matrices[k].T``, times the gain of k, for each segment k."""

    def add_widened_(self, target: Any, narrow: Any, matrices: Any) -> None:
        """Add ``narrow[k] @ matrices[k]`` to ``target[k]`` in place."""

    def gradients(self, narrow: Any, parts: Any) -> Sequence[Tensor]:
        """Return ``narrow[k].T @ parts[k]``, ``[rank, features]``, with the padding that ``gather`` added."""


class SeparateProducts:
    """One product for each segment, of any length and rank."""

    def __init__(self, segments: Sequence[Rows], gains: Sequence[float]) -> None:
        self._segments = segments
        self._gains = gains

    def parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(rows[start:stop] for start, stop in self._segments)

    def gather(self, matrices: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(matrices)

    def narrow(self, parts: tuple[Tensor, ...], matrices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            (matrix @ part.t()).mul_(gain)
            for part, matrix, gain in zip(parts, matrices, self._gains, strict=True)
        )

    def add_widened_(
        self, target: tuple[Tensor, ...], narrow: tuple[Tensor, ...], matrices: tuple[Tensor, ...]
    ) -> None:
        for out, few, matrix in zip(target, narrow, matrices, strict=True):
            out.addmm_(few.t(), matrix)

    def gradients(self, narrow: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(few @ part for few, part in zip(narrow, parts, strict=True))


class BatchedProducts:
    """One batched product for neighbouring segments of equal length and rank."""

    def __init__(self, segments: Sequence[Rows], gains: Sequence[float], device: torch.device) -> None:
        self._start, self._stop = segments[0][0], segments[-1][1]
        self._count = len(segments)
        self._gains = torch.tensor(gains, device=device).view(-1, 1, 1)

    def parts(self, rows: Tensor) -> Tensor:
        parts: Tensor = rows[self._start : self._stop].unflatten(0, (self._count, -1))
        return parts

    def gather(self, matrices: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(matrices))

    def narrow(self, parts: Tensor, matrices: Tensor) -> Tensor:
        return torch.bmm(matrices, parts.transpose(1, 2)).mul_(self._gains)

    def add_widened_(self, target: Tensor, narrow: Tensor, matrices: Tensor) -> None:
        target.baddbmm_(narrow.transpose(1, 2), matrices)

    def gradients(self, narrow: Tensor, parts: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(narrow, parts).unbind()


class GroupedProducts:
    """One grouped product for neighbouring segments of any length and rank.

    Smaller ranks are padded with zeros, which add exactly nothing.
    """

    def __init__(self, segments: Sequence[Rows], gains: Sequence[float], device: torch.device) -> None:
        self._start, self._stop = segments[0][0], segments[-1][1]
        ends = [stop - self._start for _, stop in segments]
        self._ends = torch.tensor(ends, dtype=torch.int32, device=device)
        lengths = torch.tensor([stop - start for start, stop in segments])
        self._gains = torch.tensor(gains).repeat_interleave(lengths).unsqueeze(1).to(device)

    def parts(self, rows: Tensor) -> Tensor:
        return rows[self._start : self._stop]

    def gather(self, matrices: Sequence[Tensor]) -> Tensor:
        multiple = _GROUPED_ALIGNMENT_BYTES // matrices[0].element_size()
        rank = -(-max(len(matrix) for matrix in matrices) // multiple) * multiple
        return torch.stack([pad(matrix, (0, 0, 0, rank - len(matrix))) for matrix in matrices])

    def narrow(self, parts: Tensor, matrices: Tensor) -> Tensor:
        return grouped_mm(parts, matrices.transpose(1, 2), offs=self._ends).mul_(self._gains)

    def add_widened_(self, target: Tensor, narrow: Tensor, matrices: Tensor) -> None:
        target.add_(grouped_mm(narrow, matrices, offs=self._ends))

    def gradients(self, narrow: Tensor, parts: Tensor) -> tuple[Tensor, ...]:
        return grouped_mm(narrow.t(), parts, offs=self._ends).unbind()


def choose_products(
    segments: Sequence[Rows],
    ranks: Sequence[int],
    gains: Sequence[float],
    *,
    device: torch.device,
    grouped: bool,
) -> SegmentProducts:
    """Select the class for the adapters' row ranges, ranks and gains.

    ``grouped`` states that the layer suits grouped_mm: bfloat16, and feature counts that keep rows aligned.
    """
    neighbours = all(left[1] == right[0] for left, right in pairwise(segments))
    alike = len({stop - start for start, stop in segments}) == 1 and len(set(ranks)) == 1
    if len(segments) == 1 or not neighbours:
        return SeparateProducts(segments, gains)
    if alike:
        return BatchedProducts(segments, gains, device)
    if grouped and device.type == "cuda":
        return GroupedProducts(segments, gains, device)
    return SeparateProducts(segments, gains)


def is_aligned_for_grouping(in_features: int, out_features: int, dtype: torch.dtype) -> bool:
    """Return whether grouped_mm supports rows of this many features on CUDA."""
    return dtype == torch.bfloat16 and all(
        features * dtype.itemsize % _GROUPED_ALIGNMENT_BYTES == 0 for features in (in_features, out_features)
    )
