"""The float32 form of a model that is loaded in less precision."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

REDUCED = (torch.bfloat16, torch.float16)
_ROOM_BYTES = 1 << 30
"""Room for the probe's passes, with a margin."""


def is_reduced(model: nn.Module) -> bool:
    """Return whether the model computes in less than float32."""
    return any(tensor.dtype in REDUCED for tensor in model.parameters())


def has_room_for_float32(model: nn.Module, device: torch.device) -> bool:
    """Return whether a model's float32 form fits on its device; host memory is assumed to be enough."""
    if device.type != "cuda":
        return True
    more_bytes = sum(4 * tensor.numel() - tensor.nbytes for tensor in model.parameters())
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes > more_bytes + _ROOM_BYTES


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Hold a model's tensors in float32 within the block. The way back restores every bit."""
    dtypes: list[tuple[Tensor, torch.dtype]] = []
    try:
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dtype in REDUCED:
                dtypes.append((tensor, tensor.dtype))
                tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in dtypes:
            tensor.data = tensor.data.to(dtype)
