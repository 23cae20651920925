"""The process groups of expert-parallel layers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from executors.moe.parallel.packing import Packing
from executors.workers.meeting import losses_told


@dataclass(frozen=True)
class ExpertGroups:
    """A rank's process groups under a packing.

    Attributes:
        tokens: ranks that exchange tokens, in the order of their experts.
        replicas: ranks that host the same experts.
    """

    packing: Packing
    rank: int
    tokens: ProcessGroup
    replicas: ProcessGroup


def connect_expert_groups(packing: Packing, rank: int, timeout_s: float) -> ExpertGroups:
    """Form the groups of all ranks; all must do so at the same time, with the same packing.

    Raises:
        PeerLostError: a rank does not come.
    """
    timeout = timedelta(seconds=timeout_s)
    with losses_told():
        # Each rank takes part in the forming of all groups, in the same order.
        sharing = {ranks: dist.new_group(ranks, timeout) for ranks in _distinct(packing, packing.group)}
        same = {ranks: dist.new_group(ranks, timeout) for ranks in _distinct(packing, packing.replicas)}
    tokens, replicas = sharing[packing.group(rank)], same[packing.replicas(rank)]
    assert isinstance(tokens, ProcessGroup), "this rank is in it"
    assert isinstance(replicas, ProcessGroup), "this rank is in it"
    return ExpertGroups(packing, rank, tokens, replicas)


def _distinct(packing: Packing, ranks_of: Callable[[int], range]) -> list[range]:
    return list(dict.fromkeys(ranks_of(rank) for rank in range(packing.world)))
