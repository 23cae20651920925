"""Memory of a step of a task on the device, without the base model."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

BYTES_PER_GIB = 2**30


@dataclass
class StepMemory:
    """Memory of a step, set at its end, also after a failure."""

    bytes: int = 0

    @property
    def gib(self) -> float:
        """In GiB."""
        return self.bytes / BYTES_PER_GIB


@contextmanager
def measured(device: torch.device, weights: Iterable[Tensor], own_bytes: int) -> Iterator[StepMemory]:
    """Measure the step of one task in the block.

    On CUDA, it is the peak of torch's allocations beyond those before. Elsewhere, it is the size of the
    tensors that autograd keeps for the backward pass, each storage once: an exact count, the same each time.

    Args:
        weights: weights of the base model and of adapters, which are held without the step, too.
        own_bytes: memory that the task holds all the time.
    """
    taken = StepMemory(own_bytes)
    if device.type == "cuda":
        held_bytes = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        try:
            yield taken
        finally:
            taken.bytes += max(torch.cuda.max_memory_allocated(device) - held_bytes, 0)
        return
    seen = {weight.untyped_storage().data_ptr() for weight in weights}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        # Tensors that autograd keeps live until the backward pass, so no two storages have one address.
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            taken.bytes += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield taken


def prepare(device: torch.device) -> None:
    """Let the device's libraries allocate their one-time memory for both directions, before a task's step is
    measured."""
    if device.type != "cuda":
        return
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        (torch.ones(64, 64, device=device) @ weight).sum().backward()
    torch.cuda.synchronize(device)
