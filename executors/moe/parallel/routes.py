"""Which rows go where: the chunks in which tokens are sent to their experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Route:
    """One chunk of a layer's rows, from one rank's view.

    Attributes:
        rows: ``(sent,)`` int64, which of the rank's rows are in the chunk, by destination and expert; None
            where the chunk is all of them, in order.
        sent: how many go to each rank of the group.
        received: how many come from each rank of the group.
        order: ``(received,)`` int64, the received rows sorted by expert; None where they are.
        counts: ``(hosted experts,)`` int64, received rows of each.
    """

    rows: Tensor | None
    sent: Sequence[int]
    received: Sequence[int]
    order: Tensor | None
    counts: Tensor


def routes(sent: Tensor, received: Tensor, chunks: int, device: torch.device) -> list[Route]:
    """Cut each expert's rows into chunks, as equal in number as can be.

    Args:
        sent: ``(ranks, hosted)`` int64 on the CPU, how many rows this rank has for each expert of each rank.
        received: the same, how many each rank has for each expert of this one.
        device: of the rows.
    """
    starts = (sent.flatten().cumsum(0) - sent.flatten()).view_as(sent)
    made = []
    for chunk in range(chunks):
        begins, ends = sent * chunk // chunks, sent * (chunk + 1) // chunks
        mine, theirs = ends - begins, received * (chunk + 1) // chunks - received * chunk // chunks
        arrives = (theirs.flatten().cumsum(0) - theirs.flatten()).view_as(theirs)
        made.append(
            Route(
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
    """The numbers of spans, one span after another."""
    starts, lengths = starts.flatten(), lengths.flatten()
    skipped = starts - (lengths.cumsum(0) - lengths)
    return torch.arange(int(lengths.sum())) + skipped.repeat_interleave(lengths)
