"""The averaging of gradients as allreduce micro-ops of the scheduler."""

import math
import threading
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket, ProcessGroup  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from executors.gang.batches import share
from executors.moe.parallel.micro_ops import part_bytes
from executors.moe.parallel.scheduler import Communication

DEFAULT_PARTITION_BYTES = 30 * 1024 * 1024
"""The thesis's 30 MB (section 4.7.1)."""


def partition(length: int, element_bytes: int, partition_bytes: int) -> list[range]:
    """Cut a tensor into the fewest parts of at most `partition_bytes` bytes, equal within one element.

    Raises:
        ValueError: no element fits.
    """
    if partition_bytes < element_bytes:
        raise ValueError(f"a partition of {partition_bytes} bytes holds no element of {element_bytes} bytes")
    parts = max(1, math.ceil(length / (partition_bytes // element_bytes)))
    return [share(length, part, parts) for part in range(parts)]


class GradientAverage:
    """Averages gradients over ranks, each tensor cut into micro-ops.

    The average is that of DistributedDataParallel: a bucket is divided by the number of ranks and added up.
    Parts are views, so no copies are made.
    """

    def __init__(
        self,
        scheduler: Communication,
        group: ProcessGroup,
        divisor: int,
        partition_bytes: int = DEFAULT_PARTITION_BYTES,
    ) -> None:
        """Add up over a group, by a scheduler that runs its collectives, and divide.

        Args:
            divisor: number of ranks with a share of the batch; some may be outside the group.

        Raises:
            ValueError: a partition is smaller than an element.
        """
        partition(0, torch.float64.itemsize, partition_bytes)
        self._scheduler = scheduler
        self._group = group
        self._is_alone = dist.get_world_size(group) == 1
        self._divisor = divisor
        self._partition_bytes = partition_bytes

    def attach(self, model: DistributedDataParallel) -> None:
        """Average a model's gradients by this. Must be called before its first backward pass."""
        model.register_comm_hook(self, _average)

    def average(self, tensor: Tensor, name: str, through: torch.device | None = None) -> Future[Tensor]:
        """Average a flat, contiguous tensor, in place.

        The future fails with the error of a micro-op.

        Args:
            through: device of the group's sums, if the tensor is in other memory. It needs room for one
                micro-op at a time.
        """
        tensor.div_(self._divisor)
        future: Future[Tensor] = Future(devices=[tensor.device] if tensor.device.type == "cuda" else None)
        if self._is_alone:
            future.set_result(tensor)
            return future
        most_bytes = part_bytes(tensor.nbytes, self._partition_bytes)
        parts = partition(tensor.numel(), tensor.element_size(), most_bytes)
        left = len(parts)
        lock = threading.Lock()

        def count(error: Exception | None) -> None:
            nonlocal left
            with lock:
                left -= 1
                if future.done():
                    return
                if error is not None:
                    future.set_exception(error)  # type: ignore[arg-type]  # declared so by torch
                elif left == 0:
                    future.set_result(tensor)

        for index, part in enumerate(parts):
            label = f"{name} part {index} of {len(parts)}"
            pending = self._scheduler.allreduce(tensor[part.start : part.stop], self._group, label, through)
            pending.when_done(count)
        return future


def _average(average: GradientAverage, bucket: GradBucket) -> Future[Tensor]:
    return average.average(bucket.buffer(), f"bucket {bucket.index()}")


def leave_out_of_averages(model: nn.Module, experts: Iterable[nn.Module]) -> None:
    """Exclude the parameters of a model's experts from DistributedDataParallel, before it wraps the model:
    ranks host different ones, and `ParallelExperts` averages their gradients."""
    expert_parameters = {id(each) for module in experts for each in module.parameters()}
    names = [name for name, each in model.named_parameters() if id(each) in expert_parameters]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
