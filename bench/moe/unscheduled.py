"""Baseline for comparison: collectives as other systems issue them, without an order between the kinds."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from executors.moe.parallel.expert_groups import Lanes
from executors.moe.parallel.micro_ops import MicroOpRecord, Pending
from executors.moe.parallel.planning import PlannedOrder
from executors.moe.parallel.scheduler import CommunicationScheduler


class UnscheduledCommunication:
    """Issues all-to-alls and allreduces each one after another, and the kinds in parallel, sharing the
    network (section 4.2.2: two independent streams). Their process groups must differ.
    """

    def __init__(self, rank: int, timeout_s: float, trace: list[MicroOpRecord] | None = None) -> None:
        """Start both threads; see `CommunicationScheduler`."""
        self._tokens = CommunicationScheduler(PlannedOrder(), rank, timeout_s, trace)
        self._gradients = CommunicationScheduler(PlannedOrder(), rank, timeout_s, trace)

    def all_to_all(
        self,
        received: Tensor,
        sent: Tensor,
        received_splits: Sequence[int],
        sent_splits: Sequence[int],
        lanes: Lanes,
        label: str,
    ) -> Pending:
        """See `CommunicationScheduler.all_to_all`."""
        return self._tokens.all_to_all(received, sent, received_splits, sent_splits, lanes, label)

    def allreduce(
        self, tensor: Tensor, group: ProcessGroup, label: str, through: torch.device | None = None
    ) -> Pending:
        """See `CommunicationScheduler.allreduce`."""
        return self._gradients.allreduce(tensor, group, label, through)

    @property
    def error(self) -> Exception | None:
        """Error after which no more collectives are issued; None without one."""
        return self._tokens.error or self._gradients.error

    def expect_all_to_alls(self, count: int) -> None:
        """Do nothing: allreduces are not delayed."""

    def close(self) -> None:
        """End both threads."""
        self._tokens.close()
        self._gradients.close()
