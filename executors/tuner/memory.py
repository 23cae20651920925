"""How many sequences a worker takes at a time, so that they fit its memory (s and m of Ymir, section 6.1)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executors.tuner.settings import TunerSettings
from executors.tuner.training import Sample, Trainer

BYTES_PER_GIB = 1 << 30


def fitting_micro_batch(peak_bytes: Callable[[int], int], most: int, room_bytes: float) -> int:
    """The largest micro-batch that fits, as far as the need for memory grows in proportion.

    Args:
        peak_bytes: what a pass with so many sequences needs; may raise `torch.OutOfMemoryError`.
        most: sequences that are wanted.
        room_bytes: what there is.

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
    """What fits the trainer's device: measured on CUDA with its longest sequence, a setting on a CPU."""
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


def bytes_beside_base(trainer: Trainer, own: Sequence[Sample]) -> int:
    """What training needs beside the base model, of what is kept from the forward to the backward pass:
    the activations of a micro-batch, and the adapter, its gradient and moments. For devices without counters.
    """
    of_base = {parameter.data_ptr() for parameter in trainer.base.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.data_ptr() not in of_base:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trainer.accumulate(own[: trainer.micro_batch_size], 0, 1)
    trainer.adapter.clear()
    gradient = trainer.adapter.gradient
    return sum(kept.values()) + 4 * gradient.numel() * gradient.element_size()
