"""Process groups for the exchange of rows, so that both directions of a link are used at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work


@dataclass(frozen=True)
class Lanes:
    """One process group, or two of the same ranks: one for rows to the rank itself and to higher ones, the
    other for rows to lower ones.

    Gloo sends only after the receiver has announced that it is ready, on the connection of its own sends. Of
    two ranks that exchange rows, the later one sends at once, and announces that it is ready behind all of
    its rows: the two directions of the link are used one after the other. With a connection for each
    direction they are used at the same time. NCCL needs no second one.
    """

    upward: ProcessGroup
    downward: ProcessGroup | None = None

    def exchange(
        self, received: Tensor, sent: Tensor, received_splits: Sequence[int], sent_splits: Sequence[int]
    ) -> list[Work]:
        """Start to exchange rows, as `torch.distributed.all_to_all_single` does."""
        if self.downward is None:
            return [_start(received, sent, received_splits, sent_splits, self.upward)]
        rank = dist.get_rank(self.upward)
        lower, lower_and_own = sum(sent_splits[:rank]), sum(received_splits[: rank + 1])
        return [
            _start(
                received[:lower_and_own],
                sent[lower:],
                [*received_splits[: rank + 1], *[0] * (len(received_splits) - rank - 1)],
                [*[0] * rank, *sent_splits[rank:]],
                self.upward,
            ),
            _start(
                received[lower_and_own:],
                sent[:lower],
                [*[0] * (rank + 1), *received_splits[rank + 1 :]],
                [*sent_splits[:rank], *[0] * (len(sent_splits) - rank)],
                self.downward,
            ),
        ]


def _start(
    received: Tensor,
    sent: Tensor,
    received_splits: Sequence[int],
    sent_splits: Sequence[int],
    group: ProcessGroup,
) -> Work:
    work = dist.all_to_all_single(
        received, sent, list(received_splits), list(sent_splits), group=group, async_op=True
    )
    assert work is not None, "this process is in the group"
    return work
