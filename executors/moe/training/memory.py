"""How much of a device's memory a rank's experts may take."""

from collections.abc import Iterable

import torch
from torch import nn

RESERVED_RATIO = 0.25
"""Of what is free beside the dense part: for activations, tokens and gradients that travel, and what torch's
allocator cannot use. What a step needs depends on the model and the batch: an operator may know better."""
_OF_TRAINED = 4
"""Times its size takes what comes to a dense parameter: its gradient, the bucket in which that is averaged,
and AdamW's two moments."""


def expert_budget(
    memory_gib: float | None, device: torch.device, dense: Iterable[nn.Parameter]
) -> int | None:
    """Bytes on the device for the experts of all layers: parameters, gradients, AdamW's moments, and what a
    layer computes with.

    Args:
        memory_gib: what the node's settings say, if anything.
        device: which has the dense part, and nothing of the experts.
        dense: what is trained beside experts.

    Returns:
        None where memory is not short: on a CPU, if nothing is said.
    """
    if memory_gib is not None:
        return int(memory_gib * 2**30)
    if device.type != "cuda":
        return None
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return budget_of_free(free_bytes, sum(each.nbytes for each in dense))


def budget_of_free(free_bytes: int, dense_bytes: int) -> int:
    """Of the memory that is free once the dense part is on the device.

    Args:
        dense_bytes: of the parameters that are trained beside experts.
    """
    return max(0, int((free_bytes - _OF_TRAINED * dense_bytes) * (1.0 - RESERVED_RATIO)))
