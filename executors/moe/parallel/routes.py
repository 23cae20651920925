"""Routes of rows: the chunks in which tokens are sent to their experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChunkRoute:
    """One chunk of a layer's rows, on one rank.

    Attributes:
        rows: ``(sent,)`` int64, indices of the rank's rows in the chunk, by destination and expert; None if
            the chunk has all of them, in order.
        sent: number of rows to each rank of the group.
        received: number of rows from each rank of the group.
        order: ``(received,)`` int64, the received rows sorted by expert; None if they arrive so.
        counts: ``(hosted experts,)`` int64, received rows of each.
    """

    rows: Tensor | None
    sent: Sequence[int]
    received: Sequence[int]
    order: Tensor | None
    counts: Tensor


def routes(sent: Tensor, received: Tensor, chunks: int, device: torch.device) -> list[ChunkRoute]:
    """Cut each expert's rows into chunks of nearly equal numbers.

    Args:
        sent: ``(ranks, hosted)`` int64 on the CPU, number of this rank's rows for each expert of each rank.
        received: ``(ranks, hosted)`` int64 on the CPU, number of each rank's rows for each expert of this
            one.
        device: device of the rows.
    """
    starts = (sent.flatten().cumsum(0) - sent.flatten()).view_as(sent)
    made = []
    for chunk in range(chunks):
        begins, ends = sent * chunk // chunks, sent * (chunk + 1) // chunks
        mine, theirs = ends - begins, received * (chunk + 1) // chunks - received * chunk // chunks
        arrives = (theirs.flatten().cumsum(0) - theirs.flatten()).view_as(theirs)
        made.append(
            ChunkRoute(
                rows=None if chunks == 1 else _spans(starts + begins, mine).to(device),
                sent=mine.sum(1).tolist(),
                received=theirs.sum(1).tolist(),
                # With one expert, or from one rank, they arrive in order.
                order=None if 1 in theirs.shape else _spans(arrives.T, theirs.T).to(device),
                counts=theirs.sum(0).to(device),
            )
        )
    return made


def _spans(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the indices of spans, one span after another."""
    starts, lengths = starts.flatten(), lengths.flatten()
    skipped = starts - (lengths.cumsum(0) - lengths)
    return torch.arange(int(lengths.sum())) + skipped.repeat_interleave(lengths)
