"""A process group of torch.distributed: what the processes of a generation do together."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from executors.gang.meeting import Meeting, losses_told


class ProcessGroup:
    """The processes of one generation, connected: Gloo on CPUs, with NCCL for what is on CUDA devices."""

    def __init__(self, meeting: Meeting) -> None:
        self.membership = meeting.membership
        self._meeting = meeting
        """Kept, since the leader's has the store that the others are connected to."""

    @classmethod
    def form(cls, meeting: Meeting, device: torch.device, timeout_s: float) -> Self:
        """Connect; all must do so at the same time.

        Raises:
            PeerLostError: one does not.
        """
        timeout = timedelta(seconds=timeout_s)
        with losses_told():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=meeting.store(timeout),
                rank=meeting.membership.rank,
                world_size=meeting.membership.world,
                timeout=timeout,
            )
        return cls(meeting)

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Tell some numbers, and return those of all processes by rank.

        Raises:
            PeerLostError: one does not answer.
        """
        mine = torch.tensor(numbers)
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        with losses_told():
            dist.all_gather(everyones, mine)
        return [row.tolist() for row in everyones]

    def add_up(self, vector: Tensor) -> None:
        """Add a vector up over all processes, in place.

        Raises:
            PeerLostError: one does not answer.
        """
        if self.membership.world > 1:
            with losses_told():
                dist.all_reduce(vector)

    def spread(self, tensors: Iterable[Tensor], source: int) -> None:
        """Have the tensors of all processes become those of one, in place.

        Raises:
            PeerLostError: one does not answer.
        """
        with losses_told():
            for tensor in tensors:
                dist.broadcast(tensor, source)

    def close(self) -> None:
        """Disconnect; the process may form another group."""
        with suppress(RuntimeError):
            dist.destroy_process_group()
