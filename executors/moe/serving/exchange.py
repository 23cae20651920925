"""Exchanges between the ranks of a service, in bounded time.

Every rank makes each decision by itself, from numbers that all ranks have sent to all ranks. So no rank waits
for another's decision. The thesis sends values to device 0 and back with the two all-to-alls of a layer
(section 4.6.2). Here, they are part of one small message to all ranks: phase two needs a layer's counts from
all ranks anyway, and this message includes the estimate for the next layer. Each message has a digest of all
decisions before it, which detects ranks that have decided differently before rows go to wrong experts.
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
from executors.moe.parallel.expert_groups import Lanes
from solvers.compiled import Ints


class RankExchange:
    """Connections of one rank. All ranks must call the same methods in the same order.

    The other ranks detect the exit of a rank at once, and a stopped or missing one within the timeout of the
    waiting call. Each call then raises CollectiveLostError.
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
            device: device of the rows that are sent.
            timeout_s: most time by which a rank may be late.

        Raises:
            CollectiveLostError: a rank does not connect.
        """
        timeout = timedelta(seconds=timeout_s)
        with lost_at("connecting for tokens", timeout_s), detecting_loss():
            upward = _connected(timeout)
            downward = None if device.type == "cuda" else _connected(timeout)
        return cls(group, Lanes(upward, downward), timeout_s)

    def note(self, decision: bytes) -> None:
        """Record a decision of this rank, which must be the same on all ranks."""
        self._decisions.update(decision)

    def gather(self, where: str, numbers: Ints) -> Ints:
        """Send some numbers to all ranks, and return those of all.

        Args:
            where: place of the call, for errors.
            numbers: (numbers,) as many on all ranks.

        Returns:
            (ranks, numbers)

        Raises:
            DisagreementError: a rank has recorded other decisions.
        """
        digest = int.from_bytes(self._decisions.digest(), "big") >> 1
        gathered = np.array(self._group.gather(where, [digest, *numbers.tolist()]), np.int64)
        others = [rank for rank, theirs in enumerate(gathered[:, 0].tolist()) if theirs != gathered[0, 0]]
        if others:
            raise DisagreementError(
                f"{where}: ranks {others} have decided differently from rank 0 since {self._last}: they "
                "differ in their plan, their settings or their code"
            )
        self._last = where
        return gathered[:, 1:]

    def spread(self, where: str, content: bytes, size: int) -> bytes:
        """Return rank 0's content on all ranks.

        Args:
            content: only rank 0's is used.
            size: its size in bytes, which all ranks have.
        """
        held = torch.zeros(size, dtype=torch.uint8)
        if self.rank == 0:
            held = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._group.spread(where, [held], 0)
        return bytes(held.tolist())

    def send_rows(self, where: str, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Exchange rows by an all-to-all with uneven splits.

        Args:
            rows: `(rows, hidden)`, in the order of their destination ranks.
            sent: number of rows to each rank.
            received: number of rows from each rank.

        Returns:
            `(rows, hidden)`, in the order of their source ranks.
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
