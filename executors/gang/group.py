"""A process group of torch.distributed: operations of all ranks of a generation, in bounded time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from executors.gang.meeting import Meeting, detecting_loss, lost_at

T = TypeVar("T")

_DIGEST_BYTES = 7
"""Bytes of a digest that fit a signed 64-bit integer."""


class DisagreementError(RuntimeError):
    """Ranks differ in their settings, plans or collectives."""


def number_of(content: bytes) -> int:
    """Return a digest of a content that `ProcessGroup.gather` can send."""
    return int.from_bytes(blake2b(content, digest_size=_DIGEST_BYTES).digest(), "big")


def disagreement_on(name: str, ranks: list[int]) -> Exception:
    """Return the error of ranks that differ from rank 0 in a content."""
    return DisagreementError(f"{name} of ranks {ranks} differs from that of rank 0")


class ProcessGroup:
    """The ranks of one generation, connected: Gloo on CPUs, with NCCL for tensors on CUDA devices.

    All ranks must call the same methods in the same order. The other ranks detect the exit of a rank at once,
    and a stopped or missing one within the timeout. Each call then raises CollectiveLostError, with the name
    of the place that the caller gives (`where`).

    Attributes:
        membership: place of this rank.
    """

    def __init__(self, meeting: Meeting, timeout_s: float) -> None:
        self.membership = meeting.membership
        self._timeout_s = timeout_s
        self._meeting = meeting
        """Kept: rank 0's meeting has the store that serves the connections of the others."""

    @classmethod
    def form(cls, meeting: Meeting, device: torch.device, timeout_s: float) -> Self:
        """Connect; all ranks must do so at the same time.

        Args:
            timeout_s: longest wait for another rank, here and in each collective.

        Raises:
            PeerLostError: a rank does not connect.
        """
        timeout = timedelta(seconds=timeout_s)
        with detecting_loss():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=meeting.store(timeout),
                rank=meeting.membership.rank,
                world_size=meeting.membership.world,
                timeout=timeout,
            )
        return cls(meeting, timeout_s)

    @property
    def rank(self) -> int:
        return self.membership.rank

    @property
    def world(self) -> int:
        return self.membership.world

    def gather(self, where: str, numbers: Sequence[int]) -> list[list[int]]:
        """Send some integers (64 bits), as many on all ranks, and return those of all by rank."""
        mine = torch.tensor([int(number) for number in numbers])
        everyones = [torch.empty_like(mine) for _ in range(self.world)]
        with self._collective(where):
            dist.all_gather(everyones, mine)
        return [row.tolist() for row in everyones]

    def compare(
        self,
        where: str,
        same: Mapping[str, bytes],
        disagreement: Callable[[str, list[int]], Exception] = disagreement_on,
    ) -> None:
        """Check that all ranks have the same contents.

        Args:
            same: contents by name, for errors.
            disagreement: returns the error for the name of a content and the ranks that differ in it from
                rank 0.

        Raises:
            DisagreementError: a rank differs from rank 0.
        """
        rows = self.gather(where, list(map(number_of, same.values())))
        for place, name in enumerate(same):
            others = [rank for rank, row in enumerate(rows) if row[place] != rows[0][place]]
            if others:
                raise disagreement(name, others)

    def add_up(self, where: str, vector: Tensor) -> None:
        """Add a vector up over all ranks, in place."""
        if self.world > 1:
            with self._collective(where):
                dist.all_reduce(vector)

    def spread(self, where: str, tensors: Iterable[Tensor], source: int) -> None:
        """Replace the tensors of all ranks by those of one, in place."""
        with self._collective(where):
            for tensor in tensors:
                dist.broadcast(tensor, source)

    def collect(self, where: str, tensor: Tensor, ranks: range) -> list[Tensor] | None:
        """Return the tensors of some ranks on rank 0, which is the first of them, on the CPU; None elsewhere.

        Args:
            tensor: of the same shape on each of these ranks.
        """
        mine = tensor.cpu().contiguous()
        with self._collective(where):
            if self.rank == 0:
                collected = [mine]
                for rank in ranks[1:]:
                    collected.append(torch.empty_like(mine))
                    dist.recv(collected[-1], rank)
                return collected
            if self.rank in ranks:
                dist.send(mine, 0)
        return None

    def led(self, where: str, work: Callable[[], T]) -> T | None:
        """Let rank 0 run a function that may take longer than the timeout. All ranks return once it is done.

        Returns:
            The result of the function, on rank 0; None elsewhere.

        Raises:
            Exception: on rank 0, the error of the function.
        """
        if self.rank > 0:
            while not self.gather(where, [0])[0][0]:
                pass
            return None
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(work)
            while True:
                is_done = bool(wait([working], self._timeout_s / 4).done)
                result = working.result() if is_done else None
                self.gather(where, [is_done])
                if is_done:
                    return result

    def close(self) -> None:
        """Disconnect; the process may form another group."""
        with suppress(RuntimeError):
            dist.destroy_process_group()

    @contextmanager
    def _collective(self, where: str) -> Iterator[None]:
        with lost_at(where, self._timeout_s), detecting_loss():
            yield
