"""Number of sequences per pass of a rank that fits its memory (s and m of Ymir, section 6.1)."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from executors.tuner.settings import TunerSettings
from executors.tuner.training import Sample, Trainer

BYTES_PER_GIB = 1 << 30


def fitting_micro_batch(peak_bytes: Callable[[int], int], most: int, room_bytes: float) -> int:
    """Return the largest micro-batch that fits, if memory grows in proportion.

    Args:
        peak_bytes: memory that a pass with a number of sequences needs; may raise `torch.OutOfMemoryError`.
        most: sequences to process.
        room_bytes: memory available.

    Raises:
        torch.OutOfMemoryError: not even one sequence fits.
    """
    one = peak_bytes(1)
    if most == 1:
        return 1
    try:
        two = peak_bytes(2)
    except torch.OutOfMemoryError:
        return 1
    each = max(two - one, 1)
    return max(1, min(most, 1 + int((room_bytes - one) / each)))


def choose_micro_batch(trainer: Trainer, longest: Sample, most: int, settings: TunerSettings) -> int:
    """Return the largest micro-batch for the trainer's device: measured on CUDA with the longest sequence, a
    setting on a CPU."""
    device = trainer.device
    if device.type != "cuda":
        return min(settings.micro_batch_size, most)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    held_bytes = torch.cuda.memory_allocated(device)
    free_bytes += torch.cuda.memory_reserved(device) - held_bytes

    def peak_bytes(count: int) -> int:
        torch.cuda.reset_peak_memory_stats(device)
        trainer.micro_batch_size = count
        trainer.accumulate([longest] * count, 0, 1)
        trainer.adapter.clear()
        return torch.cuda.max_memory_allocated(device) - held_bytes

    return fitting_micro_batch(peak_bytes, most, settings.memory_share * free_bytes)


def most_bytes_kept(model: nn.Module, compute: Callable[[], object]) -> int:
    """Return the peak size of the tensors that a computation keeps from its forward to its backward passes,
    without the model's parameters. For devices without counters (bytes)."""
    watch = _Kept({parameter.data_ptr() for parameter in model.parameters()})
    with torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda packed: packed.tensor):
        compute()
    return watch.most_bytes


class _Kept:
    """Counts the storages of tensors that are kept for the backward pass, each once."""

    def __init__(self, left_out: set[int]) -> None:
        self.most_bytes = 0
        self._left_out = left_out
        self._users: dict[int, int] = {}
        self._bytes = 0

    def pack(self, tensor: Tensor) -> "_Packed":
        packed = _Packed(tensor)
        if tensor.data_ptr() not in self._left_out:
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
            if place not in self._users:
                self._bytes += size
                self.most_bytes = max(self.most_bytes, self._bytes)
            self._users[place] = self._users.get(place, 0) + 1
            weakref.finalize(packed, self._drop, place, size)
        return packed

    def _drop(self, place: int, size: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place]
            self._bytes -= size


class _Packed:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
