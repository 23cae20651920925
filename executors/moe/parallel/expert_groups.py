"""The process groups of expert-parallel layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from executors.gang.meeting import detecting_loss
from executors.moe.parallel.packing import Packing


@dataclass(frozen=True)
class Lanes:
    """One process group, or two of the same ranks: one for rows to the rank itself and to higher ones, the
    other for rows to lower ones.

    Gloo sends only after the receiver has announced that it is ready, on the connection of its own sends. Of
    two ranks that exchange rows, the later one sends its rows at once, and announces only after them that it
    is ready to receive. So the two directions of the link are used one after the other. With a connection for
    each direction they are used at the same time. NCCL needs no second one.
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


@dataclass(frozen=True)
class ExpertGroups:
    """A rank's process groups under a packing.

    Attributes:
        tokens: ranks that exchange tokens, in the order of their experts.
        replicas: ranks that host the same experts.
    """

    packing: Packing
    rank: int
    tokens: Lanes
    replicas: ProcessGroup


def connect_expert_groups(
    packing: Packing, rank: int, device: torch.device, timeout_s: float
) -> ExpertGroups:
    """Form the groups of all ranks; all must do so at the same time, with the same packing.

    Args:
        device: device of the rows that are exchanged.

    Raises:
        PeerLostError: a rank does not connect.
    """
    timeout = timedelta(seconds=timeout_s)
    with detecting_loss():
        upward = _connect(packing, packing.group, rank, timeout)
        downward = None if device.type == "cuda" else _connect(packing, packing.group, rank, timeout)
        replicas = _connect(packing, packing.replicas, rank, timeout)
    return ExpertGroups(packing, rank, Lanes(upward, downward), replicas)


def _connect(
    packing: Packing, ranks_of: Callable[[int], range], rank: int, timeout: timedelta
) -> ProcessGroup:
    # Each rank takes part in the forming of all groups, in the same order.
    distinct = dict.fromkeys(ranks_of(each) for each in range(packing.world))
    groups = {ranks: dist.new_group(ranks, timeout) for ranks in distinct}
    mine = groups[ranks_of(rank)]
    assert isinstance(mine, ProcessGroup), "this rank is in it"
    return mine
