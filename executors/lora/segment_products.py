"""Matrix products in which each segment of rows meets a matrix of its own.

A segment is one task's token range. The three classes do the same arithmetic; ``choose_products`` picks one:

- ``BatchedProducts`` when all segments are equally long and all matrices equally large: one ``torch.bmm``.
- ``GroupedProducts`` for ragged segments on CUDA, where a launch for each segment would leave the device
  idle: one ``torch.nn.functional.grouped_mm`` on bfloat16, with ranks padded to its 16-byte alignment.
- ``SeparateProducts`` otherwise. On a CPU a call costs a few microseconds and grouped_mm loops as well, so
  one product for each segment is fastest, and bit for bit what the task alone would compute.

"Parts" are a ``[T, features]`` tensor in the shape that a class works on. "Matrices" are gathered once and
used in both passes.
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
    """Products of the segments' rows with the segments' own matrices."""

    def parts(self, rows: Tensor) -> Any:
        """View the segments' rows of ``[T, features]``."""

    def gather(self, matrices: Sequence[Tensor]) -> Any:
        """Bring one matrix for each segment into the form that the products take."""

    def transpose(self, matrices: Any) -> Any:
        """Transpose each gathered matrix; copies nothing."""

    def multiply(self, parts: Any, matrices: Any) -> Any:
        """Return ``parts[k] @ matrices[k]`` for each segment k, as parts."""

    def scale_(self, parts: Any) -> None:
        """Multiply each segment k by its gain in place."""

    def add_multiply_(self, target: Any, parts: Any, matrices: Any) -> None:
        """Add ``parts[k] @ matrices[k]`` to ``target[k]`` in place."""

    def outer(self, left: Any, right: Any) -> Sequence[Tensor]:
        """Return ``left[k].T @ right[k]`` for each segment k, with whatever padding ``gather`` put in."""


class SeparateProducts:
    """One product for each segment, of any length and rank."""

    def __init__(self, segments: Sequence[Rows], gains: Sequence[float]) -> None:
        self._segments = segments
        self._gains = gains

    def parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(rows[start:stop] for start, stop in self._segments)

    def gather(self, matrices: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(matrices)

    def transpose(self, matrices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(matrix.t() for matrix in matrices)

    def multiply(self, parts: tuple[Tensor, ...], matrices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(part @ matrix for part, matrix in zip(parts, matrices, strict=True))

    def scale_(self, parts: tuple[Tensor, ...]) -> None:
        for part, gain in zip(parts, self._gains, strict=True):
            part.mul_(gain)

    def add_multiply_(
        self, target: tuple[Tensor, ...], parts: tuple[Tensor, ...], matrices: tuple[Tensor, ...]
    ) -> None:
        for out, part, matrix in zip(target, parts, matrices, strict=True):
            out.addmm_(part, matrix)

    def outer(self, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(a.t() @ b for a, b in zip(left, right, strict=True))


class BatchedProducts:
    """One batched product for neighbouring segments of equal length and rank."""

    def __init__(self, segments: Sequence[Rows], gains: Sequence[float], device: torch.device) -> None:
        self._start, self._stop = segments[0][0], segments[-1][1]
        self._count = len(segments)
        self._gains = torch.tensor(gains, device=device).view(-1, 1, 1)

    def parts(self, rows: Tensor) -> Tensor:
        return rows[self._start : self._stop].unflatten(0, (self._count, -1))

    def gather(self, matrices: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(matrices))

    def transpose(self, matrices: Tensor) -> Tensor:
        return matrices.transpose(1, 2)

    def multiply(self, parts: Tensor, matrices: Tensor) -> Tensor:
        return torch.bmm(parts, matrices)

    def scale_(self, parts: Tensor) -> None:
        parts.mul_(self._gains)

    def add_multiply_(self, target: Tensor, parts: Tensor, matrices: Tensor) -> None:
        target.baddbmm_(parts, matrices)

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(left.transpose(1, 2), right).unbind()


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
        height, width = (_round_up(max(m.shape[axis] for m in matrices), multiple) for axis in (0, 1))
        return torch.stack([pad(m, (0, width - m.shape[1], 0, height - m.shape[0])) for m in matrices])

    def transpose(self, matrices: Tensor) -> Tensor:
        return matrices.transpose(1, 2)

    def multiply(self, parts: Tensor, matrices: Tensor) -> Tensor:
        return grouped_mm(parts, matrices, offs=self._ends)

    def scale_(self, parts: Tensor) -> None:
        parts.mul_(self._gains)

    def add_multiply_(self, target: Tensor, parts: Tensor, matrices: Tensor) -> None:
        target.add_(grouped_mm(parts, matrices, offs=self._ends))

    def outer(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        return grouped_mm(left.t(), right, offs=self._ends).unbind()


def choose_products(
    segments: Sequence[Rows],
    ranks: Sequence[int],
    gains: Sequence[float],
    *,
    device: torch.device,
    grouped: bool,
) -> SegmentProducts:
    """Pick the class for the adapters' row ranges, ranks and gains.

    ``grouped`` says that the layer suits grouped_mm: bfloat16, and feature counts that keep rows aligned.
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
    """Whether grouped_mm takes rows of this many features on CUDA."""
    return dtype == torch.bfloat16 and all(
        features * dtype.itemsize % _GROUPED_ALIGNMENT_BYTES == 0 for features in (in_features, out_features)
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
