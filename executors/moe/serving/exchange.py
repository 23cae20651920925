"""What the ranks of a service tell and send each other, in bounded time.

Every rank makes each decision by itself, from numbers that all ranks have told all ranks: so no rank waits
for another that decides, and there is no message with the decision. What the thesis sends to device 0 and
back on the two all-to-alls of a layer (section 4.6.2) is in one small message to all: a layer's counts, which
phase two needs of all ranks anyway, carry the estimate for the next layer. With each message goes a digest of
all decisions before it, by which ranks that have decided differently are found before rows go astray.
"""

from collections.abc import Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from executors.gang.group import DisagreementError, ProcessGroup
from executors.gang.meeting import detecting_loss, lost_at
from executors.moe.parallel.lanes import Lanes
from solvers.compiled import Ints


class RankExchange:
    """One rank's connections. All ranks must call the same methods in the same order.

    A rank that ends is noticed by the others at once; one that is stopped, or does not come, within the
    timeout of the call that waits for it. Each call then raises CollectiveLostError.
    """

    def __init__(self, group: ProcessGroup, lanes: Lanes, timeout_s: float) -> None:
        self._group = group
        self._lanes = lanes
        self._timeout_s = timeout_s
        self._decisions = blake2b(digest_size=8)
        self._last = "the beginning"
        self.rank = group.membership.rank
        self.world = group.membership.world

    @classmethod
    def connect(cls, group: ProcessGroup, device: torch.device, timeout_s: float) -> Self:
        """Connect; all ranks must do so at the same time.

        Args:
            device: of the rows that are sent.
            timeout_s: how long a rank may be late.

        Raises:
            CollectiveLostError: one does not come.
        """
        timeout = timedelta(seconds=timeout_s)
        with lost_at("connecting for tokens", timeout_s), detecting_loss():
            upward = _connected(timeout)
            downward = None if device.type == "cuda" else _connected(timeout)
        return cls(group, Lanes(upward, downward), timeout_s)

    def note(self, decision: bytes) -> None:
        """This rank has decided something that all ranks must decide alike."""
        self._decisions.update(decision)

    def tell(self, where: str, numbers: Ints) -> Ints:
        """Tell some numbers, and return those of all ranks.

        Args:
            where: in words, for errors.
            numbers: (numbers,) as many on all ranks.

        Returns:
            (ranks, numbers)

        Raises:
            CollectiveLostError: a rank is gone, or late.
            DisagreementError: a rank has noted other decisions.
        """
        digest = int.from_bytes(self._decisions.digest(), "big") >> 1
        told = np.array(self._group.gather(where, [digest, *numbers.tolist()]), np.int64)
        others = [rank for rank, theirs in enumerate(told[:, 0].tolist()) if theirs != told[0, 0]]
        if others:
            raise DisagreementError(
                f"{where}: ranks {others} have decided otherwise than rank 0 since {self._last}: they differ "
                "in their plan, their settings or their code"
            )
        self._last = where
        return told[:, 1:]

    def spread(self, where: str, content: bytes, size: int) -> bytes:
        """What rank 0 has, on all ranks.

        Args:
            content: counts on rank 0 alone.
            size: of it in bytes, as all ranks know.

        Raises:
            CollectiveLostError: a rank is gone, or late.
        """
        held = torch.zeros(size, dtype=torch.uint8)
        if self.rank == 0:
            held = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._group.spread(where, [held], 0)
        return bytes(held.tolist())

    def send_rows(self, where: str, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Exchange rows by an all-to-all with uneven splits.

        Args:
            rows: `(rows, hidden)`, in the order of the ranks that they go to.
            sent: how many go to each rank.
            received: how many come from each rank.

        Returns:
            `(rows, hidden)`, in the order of the ranks that they come from.

        Raises:
            CollectiveLostError: a rank is gone, or late.
        """
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        with lost_at(where, self._timeout_s), detecting_loss():
            for work in self._lanes.exchange(arrived, rows.contiguous(), received, sent):
                work.wait()
        return arrived


def _connected(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(timeout=timeout)
    assert isinstance(group, dist.ProcessGroup), "this rank is in it"
    return group
