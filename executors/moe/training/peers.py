"""What the ranks of a job that trains tell each other between passes, in bounded time.

All of it goes over the default process group, while no other collective is under way.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from executors.gang.group import ProcessGroup
from executors.gang.meeting import PeerLostError, losses_told
from executors.moe.parallel.micro_ops import CollectiveLostError

T = TypeVar("T")


class Peers:
    """All ranks. They must call the same methods in the same order.

    A rank that ends is noticed by the others at once; one that is stopped, or does not come, within the
    timeout. Each call then raises CollectiveLostError.
    """

    def __init__(self, group: ProcessGroup, timeout_s: float) -> None:
        """
        Args:
            timeout_s: of the group, how long a rank may be late.
        """
        self._group = group
        self._timeout_s = timeout_s
        self.rank = group.membership.rank
        self.world = group.membership.world

    def tell(self, where: str, numbers: Sequence[int]) -> list[list[int]]:
        """Tell some numbers, as many on all ranks, and return those of all by rank.

        Args:
            where: in words, for errors; so in all that follows.
        """
        with lost_at(where, self._timeout_s):
            return self._group.gather([int(number) for number in numbers])

    def led(self, where: str, work: Callable[[], T]) -> T | None:
        """Have rank 0 do something that may take longer than ranks wait for each other; all of them return
        once it is done.

        Returns:
            What the work returns, on rank 0; None elsewhere.

        Raises:
            Exception: on rank 0, what the work raises.
        """
        if self.rank > 0:
            while not self.tell(where, [0])[0][0]:
                pass
            return None
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(work)
            while True:
                is_done = bool(wait([working], self._timeout_s / 4).done)
                result = working.result() if is_done else None
                self.tell(where, [is_done])
                if is_done:
                    return result

    def add_up(self, where: str, vector: Tensor) -> None:
        """Add a vector up over all ranks, in place."""
        with lost_at(where, self._timeout_s):
            self._group.add_up(vector)

    def spread(self, where: str, tensor: Tensor) -> None:
        """Have a tensor of the CPU become that of rank 0, in place."""
        with lost_at(where, self._timeout_s):
            self._group.spread([tensor], 0)

    def collect(self, where: str, tensor: Tensor, ranks: range) -> list[Tensor] | None:
        """On rank 0, the tensors of some ranks, itself the first of them, on the CPU; None elsewhere.

        Args:
            tensor: of the same shape on each of these ranks.
        """
        mine = tensor.cpu().contiguous()
        with lost_at(where, self._timeout_s), losses_told():
            if self.rank == 0:
                collected = [mine]
                for rank in ranks[1:]:
                    collected.append(torch.empty_like(mine))
                    dist.recv(collected[-1], rank)
                return collected
            if self.rank in ranks:
                dist.send(mine, 0)
        return None


@contextmanager
def lost_at(where: str, timeout_s: float) -> Iterator[None]:
    """For what ranks do together: say where a rank was lost.

    Raises:
        CollectiveLostError: in place of PeerLostError.
    """
    try:
        yield
    except CollectiveLostError:
        raise
    except PeerLostError as error:
        reason = str(error).strip().partition("\n")[0]
        raise CollectiveLostError(
            f"{where}: another rank is gone, or has not come within {timeout_s:g} s: {reason}"
        ) from error
