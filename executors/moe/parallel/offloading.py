"""Experts with parameters in the host's memory, for devices with little memory (section 4.4.2)."""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


class OffloadedExperts(nn.Module):
    """Experts that stay on the device in part; the others are copied from the host's memory one by one.

    Such an expert is copied to the device, computes its rows, and is freed; in the backward pass it is copied
    and computed again. So at most one copied expert is on the device at a time. Each parameter is trained in
    its own memory: gradients of the copied experts go to the host's memory.

    Attributes:
        peak_bytes: most bytes of parameters from the host's memory that were on the device at a time.
    """

    def __init__(self, resident: nn.Module | None, offloaded: Sequence[nn.Module]) -> None:
        """Combine both kinds; see `resident_experts` for their numbers.

        Args:
            resident: the first experts, on the device; None if none stays. Maps rows sorted by expert, and
                counts, to the same number of rows.
            offloaded: the others, each a module of one expert with the same interface, with all of its
                parameters in the host's memory.
        """
        super().__init__()
        self.resident = resident
        self.offloaded = nn.ModuleList(offloaded)
        self.peak_bytes = self._visiting_bytes = 0

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network of its expert.

        Args:
            rows: ``(pairs, hidden)``, sorted by expert.
            counts: ``(experts,)`` int64, rows of each expert; the resident ones first.

        Returns:
            ``(pairs, hidden)``.

        Raises:
            ValueError: there are fewer counts than offloaded experts.
        """
        residents = len(counts) - len(self.offloaded)
        if residents < 0:
            raise ValueError(f"counts of {len(counts)} experts; {len(self.offloaded)} are offloaded")
        here, coming = counts[:residents], counts[residents:].tolist()
        own, *parts = rows.split([len(rows) - sum(coming), *coming])
        outputs = [own if self.resident is None else self.resident(own, here)]
        for expert, part in zip(self.offloaded, parts, strict=True):
            if len(part) > 0:
                outputs.append(checkpoint(self._fetch_and_compute, expert, part, use_reentrant=False))
        return torch.cat(outputs)

    def _fetch_and_compute(self, expert: nn.Module, rows: Tensor) -> Tensor:
        fetched = {name: self._fetch(each, rows.device) for name, each in expert.named_parameters()}
        count = torch.tensor([len(rows)], device=rows.device)
        outputs: Tensor = functional_call(expert, fetched, (rows, count))
        return outputs

    def _fetch(self, parameter: Tensor, device: torch.device) -> Tensor:
        # The next computation on the device waits for the copy, even if this thread does not.
        copied = parameter.to(device, copy=True, non_blocking=True)
        self._visiting_bytes += copied.nbytes
        self.peak_bytes = max(self.peak_bytes, self._visiting_bytes)
        weakref.finalize(copied, self._note_freed, copied.nbytes)
        return copied

    def _note_freed(self, size_bytes: int) -> None:
        self._visiting_bytes -= size_bytes


def place(stacked: Tensor, resident: int, device: torch.device) -> list[Tensor]:
    """Split a tensor of some experts and move the pieces to their memory.

    Args:
        stacked: ``(experts, ...)``, in any memory.
        resident: number of them that stay on the device.

    Returns:
        Those that stay, if any, as one tensor on the device, and each of the others, `(1, ...)`, in the
        host's memory: pinned for CUDA devices, so that copies from it are fast. If all stay, and are there,
        no copy is made.
    """
    if resident == len(stacked):
        return [stacked.to(device).contiguous()]
    here = [stacked[:resident].to(device, copy=True).contiguous()] if resident else []
    alone = [stacked[expert : expert + 1].cpu() for expert in range(resident, len(stacked))]
    if device.type == "cuda":
        return here + [each.contiguous().pin_memory() for each in alone]
    return here + [each.clone(memory_format=torch.contiguous_format) for each in alone]


def put_together(pieces: Sequence[Tensor]) -> Tensor:
    """Combine pieces in the host's memory: `(experts, ...)`, the inverse of `place`."""
    return torch.cat([piece.detach().cpu() for piece in pieces])


def split_like(stacked: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a tensor of some experts, with the lengths of the pieces of another tensor."""
    return list(stacked.split([len(piece) for piece in pieces]))
