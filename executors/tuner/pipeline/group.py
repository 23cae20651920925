"""Communication of the ranks of a pipeline: messages between neighbours, and exchanges of all ranks.

All that waits for another rank, here or in its callers, raises `StageLostError` if one is lost or late.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Store, Work  # type: ignore[attr-defined]

from executors.gang.meeting import PeerLostError


class StageLostError(PeerLostError):
    """Another rank of the pipeline is lost, or does not answer in time."""


class Channel:
    """Messages of one kind, in order between each two ranks.

    Each kind has a process group of its own. On NCCL, a group's messages between two ranks run one after
    another, so activations that are not yet received would delay the gradients that must come first.
    """

    def __init__(
        self, name: str, group: ProcessGroup, world: int, timeout_s: float, peers: ProcessGroup | None = None
    ) -> None:
        """Use a group of `world` ranks; `peers` are those that run this rank's stage in other pipelines."""
        self._name = name
        self._group: ProcessGroup | None = group
        self._peers = peers
        self._world = world
        self._timeout_s = timeout_s
        self._sent: deque[tuple[Work, Tensor, int]] = deque()
        self._receiving: Work | None = None

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to another rank without waiting for its receipt.

        Raises:
            StageLostError: the rank is lost, or has not received a much earlier message.
        """
        tensor = tensor.contiguous()
        # Under 1F1B, a stage is ahead of another by at most the length of the pipeline, so this waits only
        # for messages that are received already. It bounds the number of tensors that are kept.
        while len(self._sent) >= 2 * self._world:
            self._wait_for_oldest()

        def start() -> None:
            work = dist.isend(tensor, group=self._opened(), group_dst=rank)
            assert work is not None, "this process is in the group"
            self._sent.append((work, tensor, rank))

        self._attempt(start, f"rank {rank} of the pipeline is gone or receives no {self._name}")

    def receive(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, rank: int) -> Tensor:
        """Wait for a tensor from another rank.

        Raises:
            StageLostError: no tensor arrives in time.
        """
        tensor = torch.empty(*shape, dtype=dtype, device=device)

        def wait() -> None:
            self._receiving = dist.irecv(tensor, group=self._opened(), group_src=rank)
            assert self._receiving is not None, "this process is in the group"
            self._receiving.wait(timedelta(seconds=self._timeout_s))

        self._attempt(wait, f"rank {rank} of the pipeline is gone or sends no {self._name}")
        return tensor

    def flush(self) -> None:
        """Wait until all sent tensors are received.

        Raises:
            StageLostError: a tensor is not received in time.
        """
        while self._sent:
            self._wait_for_oldest()

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """Send some numbers to all ranks, the same count on each, and return those of each rank."""
        mine = torch.tensor(values, dtype=torch.float64)
        everyones = [torch.empty_like(mine) for _ in range(self._world)]
        self._attempt(
            lambda: dist.all_gather(everyones, mine, group=self._opened()),
            f"one of the {self._world} ranks of the pipeline is gone or does not answer",
        )
        return [numbers.tolist() for numbers in everyones]

    def add_up_over_peers(self, tensor: Tensor) -> None:
        """Add a tensor up, in place, over the ranks that run the same stage in other pipelines, if any."""
        if self._peers is not None:
            self._attempt(
                lambda: dist.all_reduce(tensor, group=self._peers),
                "a rank of another pipeline of the task is gone or does not answer",
            )

    def close(self) -> None:
        """Release the group and cancel its pending operations."""
        self._sent.clear()
        self._receiving = None
        self._group = self._peers = None

    def _wait_for_oldest(self) -> None:
        rank = self._sent[0][2]
        self._attempt(
            lambda: self._sent[0][0].wait(timedelta(seconds=self._timeout_s)),
            f"rank {rank} of the pipeline is gone or receives no {self._name}",
        )
        self._sent.popleft()

    def _opened(self) -> ProcessGroup:
        if self._group is None:
            raise RuntimeError("this rank has left the pipeline")
        return self._group

    def _attempt(self, action: Callable[[], object], failure: str) -> None:
        try:
            action()
            return
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = _first_line(error)
        # Raised outside of the handler: Gloo's connections close only when the group has no references. The
        # frames of the first error would keep one, and the other ranks would not detect that this rank
        # leaves.
        raise StageLostError(f"{failure} within {self._timeout_s:g} s: {reason}")


class StageGroup:
    """The process groups of a task's pipelines: Gloo on CPUs; on CUDA devices NCCL for activations, gradients
    and sums over pipelines.

    Attributes:
        activations: hidden states, from each stage to the next.
        gradients: of the hidden states, from each stage to the one before.
        control: small numbers and states in host memory, used by the training thread.
        background: like `control`, for the threads that prepare the next task and finish the one before while
            another trains; separate, since collectives of one group must have the same order on all ranks.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        stages: int,
        device: torch.device,
        join_timeout_s: float,
        peer_timeout_s: float,
    ) -> None:
        """Connect; all ranks must do so at the same time, without another default process group.

        Args:
            store: kept open, since the leader's may serve the connections of the others.
            stages: ranks of each pipeline, which are neighbours; `world` is a multiple of it.

        Raises:
            StageLostError: a rank does not connect.
        """
        join_timeout = timedelta(seconds=join_timeout_s)
        heavy = "nccl" if device.type == "cuda" else "gloo"

        def connect(ranks: Sequence[int] | None, backend: str) -> ProcessGroup | None:
            timeout = timedelta(seconds=peer_timeout_s)
            group = dist.new_group(ranks, timeout=timeout, backend=backend)
            # A placeholder stands for a group without this rank.
            return group if isinstance(group, ProcessGroup) else None

        try:
            store.set_timeout(join_timeout)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=join_timeout)
            channels = []
            for name, backend, adds_up in (
                ("activations", heavy, False),
                ("gradients", heavy, False),
                ("control messages", "gloo", True),
                ("state", "gloo", True),
            ):
                group, peers = connect(None, backend), None
                assert group is not None, "all ranks are in it"
                for position in range(stages if adds_up and world > stages else 0):
                    among = connect(range(position, world, stages), heavy)
                    peers = among if among is not None else peers
                channels.append(Channel(name, group, world, peer_timeout_s, peers))
        except RuntimeError as error:
            _disconnect()
            raise StageLostError(
                f"rank {rank}: not all {world} ranks of the pipeline have joined within "
                f"{join_timeout_s:g} s: {_first_line(error)}"
            ) from error
        self.rank = rank
        self.world = world
        self.stages = stages
        self._store = store
        self.activations, self.gradients, self.control, self.background = channels

    def close(self) -> None:
        """Disconnect: ranks that wait for this one get an error. The process may join another pipeline."""
        for channel in (self.activations, self.gradients, self.control, self.background):
            channel.close()
        _disconnect()


def _disconnect() -> None:
    if dist.is_initialized():
        with suppress(RuntimeError):  # the rest of a group that never connected
            dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
