"""Experts whose parameters are in the host's memory, where the device's is short (section 4.4.2)."""

import weakref

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


class OffloadedExperts(nn.Module):
    """Experts of which some stay on the device, and the others come from the host's memory one by one.

    An expert that comes is copied to the device, computes its rows, and is let go; in the backward pass it
    comes again and computes them anew. So at no time are more bytes of parameters on the device than those of
    the resident experts and of one more. Each parameter is trained where it lives.

    Attributes:
        peak_bytes: the most bytes of parameters that were on the device so far.
    """

    def __init__(self, resident: nn.Module | None, offloaded: nn.Module, budget_bytes: int) -> None:
        """Put both together; see `resident_experts` for how many fit.

        Args:
            resident: the first experts, on the device; None if there is no room.
            offloaded: the others, in the host's memory. Both map rows sorted by expert, and counts, to as
                many rows, and have parameters stacked by expert, `(experts, ...)`, and no others.
            budget_bytes: for parameters on the device.

        Raises:
            ValueError: they do not fit.
        """
        super().__init__()
        self.resident = resident
        self.offloaded = offloaded
        self._offloaded_count = _count(offloaded)
        self._resident_count = 0 if resident is None else _count(resident)
        self._on_device_bytes = 0 if resident is None else _size_bytes(resident)
        self.peak_bytes = self._on_device_bytes
        needed_bytes = self._on_device_bytes + _size_bytes(offloaded) // self._offloaded_count
        if needed_bytes > budget_bytes:
            raise ValueError(
                f"{self._resident_count} resident experts and one that comes have {needed_bytes} bytes, "
                f"which do not fit into a budget of {budget_bytes} bytes: keep fewer of them"
            )

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network of its expert.

        Args:
            rows: ``(pairs, hidden)``, sorted by expert.
            counts: ``(experts,)`` int64, rows of each expert; the resident ones first.

        Returns:
            ``(pairs, hidden)``.

        Raises:
            ValueError: the counts are of another number of experts.
        """
        if len(counts) != self._resident_count + self._offloaded_count:
            raise ValueError(
                f"counts of {len(counts)} experts; {self._resident_count} are resident and "
                f"{self._offloaded_count} offloaded"
            )
        here, coming = counts[: self._resident_count], counts[self._resident_count :].tolist()
        parts = rows.split([len(rows) - sum(coming), *coming])
        outputs = [parts[0] if self.resident is None else self.resident(parts[0], here)]
        for expert, part in enumerate(parts[1:]):
            if len(part) > 0:
                outputs.append(checkpoint(self._fetch_and_compute, expert, part, use_reentrant=False))
        return torch.cat(outputs)

    def _fetch_and_compute(self, expert: int, rows: Tensor) -> Tensor:
        fetched = {
            name: self._fetch(each[expert : expert + 1], rows.device)
            for name, each in self.offloaded.named_parameters()
        }
        count = torch.tensor([len(rows)], device=rows.device)
        outputs: Tensor = functional_call(self.offloaded, fetched, (rows, count))
        return outputs

    def _fetch(self, parameter: Tensor, device: torch.device) -> Tensor:
        copied = parameter.to(device, copy=True)
        size_bytes = copied.numel() * copied.element_size()
        self._on_device_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._on_device_bytes)
        weakref.finalize(copied, self._let_go, size_bytes)
        return copied

    def _let_go(self, size_bytes: int) -> None:
        self._on_device_bytes -= size_bytes


def _count(experts: nn.Module) -> int:
    return len(next(experts.parameters()))


def _size_bytes(experts: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in experts.parameters())
