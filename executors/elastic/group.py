"""A generation's process group: what its processes do together, at the boundary of a step and in it."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from executors.elastic.meeting import Meeting, losses_told


class Wish(IntEnum):
    """What a process would have all do next; the highest of all is done."""

    TRAIN = 0
    REGROUP = 1
    """The generation is over; the next one is formed by those that stay."""
    STOP = 2
    """The job stops here, with a checkpoint if it keeps any."""
    DISCARD = 3
    """The job stops here, and nothing is kept."""


@dataclass(frozen=True)
class Signal:
    """What each process tells all others at the boundary of a step."""

    wish: int
    loss_tokens: int
    """Of its share of the next step."""
    saved_samples: int
    """What the newest checkpoint has, as far as it knows: only the leader writes any."""


@dataclass(frozen=True)
class Standing:
    """What each process brings to a new generation."""

    samples_done: int
    """Of the state that it holds; -1 without any."""
    saved_samples: int
    data_digest: int
    """Part of its dataset's digest: all must train on the same."""


class Group:
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

    def exchange(self, signal: Signal) -> list[Signal]:
        """Tell a signal, and return those of all processes by rank.

        Raises:
            PeerLostError: one does not answer.
        """
        return [Signal(*numbers) for numbers in self._gather(astuple(signal))]

    def compare(self, standing: Standing) -> list[Standing]:
        """Tell a standing, and return those of all processes by rank.

        Raises:
            PeerLostError: one does not answer.
        """
        return [Standing(*numbers) for numbers in self._gather(astuple(standing))]

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

    @staticmethod
    def _gather(numbers: Sequence[int]) -> list[list[int]]:
        mine = torch.tensor(numbers)
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        with losses_told():
            dist.all_gather(everyones, mine)
        return [row.tolist() for row in everyones]
