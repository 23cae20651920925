"""The process groups of expert-parallel layers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from executors.gang.meeting import detecting_loss
from executors.moe.parallel.lanes import Lanes
from executors.moe.parallel.packing import Packing


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
