"""Experts of a layer on one rank: weights of all in the host's memory, of some in slots on the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from solvers.experts.placement import FREE


class ExpertSlots:
    """Slots on the device, each with the weights of one expert (thesis, section 4.6.2).

    Only one thread at a time may `hold`, and not while another computes with the same layer. An expert stays
    in its slot until the slot is needed.
    """

    def __init__(self, experts: nn.Module, slots: int, device: torch.device) -> None:
        """Start with all slots free.

        Args:
            experts: all of the layer's, on the CPU; maps rows sorted by expert, and counts, to the same
                number of rows, and has only parameters stacked by expert, `(experts, ...)`. It must not be
                moved.
        """
        self._experts = experts.requires_grad_(False)
        self._host: dict[str, Tensor] = {}
        for name, parameter in experts.named_parameters():
            if device.type == "cuda":
                parameter.data = parameter.data.pin_memory()
            self._host[name] = parameter.data
        self._on_device = {
            name: torch.empty((slots, *each.shape[1:]), dtype=each.dtype, device=device)
            for name, each in self._host.items()
        }
        self._held = [FREE] * slots
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._used = self._loaded = None if self._stream is None else self._stream.record_event()
        self.count = len(next(iter(self._host.values())))
        """Experts of the layer."""

    @property
    def size(self) -> int:
        """Number of slots."""
        return len(self._held)

    def hold(self, experts: Sequence[int]) -> int:
        """Load those of some experts that are not there, instead of others.

        Returns:
            number of experts loaded.

        Raises:
            ValueError: there are more experts than slots.
        """
        if len(experts) > self.size:
            raise ValueError(f"{len(experts)} experts for {self.size} slots on the device")
        missing = [expert for expert in experts if expert not in self._held]
        if missing:
            free = [slot for slot, held in enumerate(self._held) if held not in experts]
            with self._copying():
                for expert, slot in zip(missing, free, strict=False):
                    self._held[slot] = expert
                    for name, each in self._on_device.items():
                        each[slot].copy_(self._host[name][expert], non_blocking=True)
        return len(missing)

    def slots_of(self, experts: Sequence[int]) -> list[int]:
        """Return the slots of held experts."""
        return [self._held.index(expert) for expert in experts]

    def compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network in its slot.

        Args:
            rows: `(pairs, hidden)` on the device, sorted by slot.
            counts: `(slots,)` int64 on the device, rows of each slot.

        Returns:
            `(pairs, hidden)`.
        """
        if self._loaded is not None:
            torch.cuda.current_stream().wait_event(self._loaded)
        outputs: Tensor = functional_call(self._experts, self._on_device, (rows, counts))
        if self._stream is not None:
            self._used = torch.cuda.current_stream().record_event()
        return outputs

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Let copies run parallel to the computation, after the computation with the slots' previous
        experts."""
        if self._stream is None:
            yield
            return
        assert self._used is not None, "there is one wherever there is a stream"
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._used)
            yield
            self._loaded = self._stream.record_event()
