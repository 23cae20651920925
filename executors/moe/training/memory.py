"""Device memory for a rank's experts."""

from collections.abc import Iterable

import torch
from torch import nn

RESERVED_RATIO = 0.25
"""Share of the memory that the dense part leaves free: for activations, tokens and gradients in transit, and
fragments of torch's allocator. The need of a step depends on the model and the batch, so the setting may be
better."""
_OF_TRAINED = 4
"""Memory of a dense parameter in training besides itself, in sizes of the parameter: its gradient, the bucket
of its average, and AdamW's two moments."""


def expert_budget(
    memory_gib: float | None, device: torch.device, dense: Iterable[nn.Parameter]
) -> int | None:
    """Return the bytes on the device for the experts of all layers: parameters, gradients, AdamW's moments,
    and the memory of a layer's computation.

    Args:
        memory_gib: the node's setting, if any.
        device: device with the dense part, and without the experts.
        dense: trained parameters besides those of experts.

    Returns:
        None without a limit: on a CPU without the setting.
    """
    if memory_gib is not None:
        return int(memory_gib * 2**30)
    if device.type != "cuda":
        return None
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return budget_of_free(free_bytes, sum(each.nbytes for each in dense))


def budget_of_free(free_bytes: int, dense_bytes: int) -> int:
    """Return the budget from the memory that is free with the dense part on the device.

    Args:
        dense_bytes: bytes of the trained parameters besides those of experts.
    """
    return max(0, int((free_bytes - _OF_TRAINED * dense_bytes) * (1.0 - RESERVED_RATIO)))
