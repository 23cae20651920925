"""Experts of a layer on one rank, all in the host's memory and some in slots on the device, and the routes of
rows to them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from solvers.compiled import Ints
from solvers.experts.placement import FREE, ExpertPlacement


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


@dataclass(frozen=True, eq=False)
class Route:
    """Route of a layer's rows, on one rank.

    Attributes:
        order: `(sent,)`, indices of the rank's rows, sorted by expert, in the order of sending: by device and
            then by slot.
        sent: rows to each rank.
        received: rows from each rank.
        arrangement: `(received,)`, the received rows sorted by slot of this rank's device.
        counts: `(slots,)`, received rows of each slot.
    """

    order: Ints
    sent: list[int]
    received: list[int]
    arrangement: Ints
    counts: Ints


def route_of(placement: ExpertPlacement, sends: Ints, rank: int, slots: Sequence[int], size: int) -> Route:
    """Return the route of one rank's rows.

    Args:
        sends: `(ranks, devices, slots)` rows from each rank to each slot of the placement.
        slots: slots of the device for its experts, in the order of the placement.
        size: slots of its device.
    """
    mine, theirs = sends[rank], sends[:, rank, :]
    # Rows are sorted by expert: in that order, and by device for each, slots have consecutive spans.
    by_expert = np.argsort(placement.experts.ravel(), kind="stable")
    lengths = mine.ravel()
    starts = np.empty_like(lengths)
    starts[by_expert] = _before(lengths[by_expert])
    # They arrive by rank, and for each in the order of the placement.
    arrives = _before(theirs.ravel()).reshape(theirs.shape)
    columns = np.argsort(slots, kind="stable")
    counts = np.zeros(size, np.int64)
    counts[list(slots)] = theirs.sum(axis=0)[: len(slots)]
    return Route(
        order=_spans(starts, lengths),
        sent=mine.sum(axis=1).tolist(),
        received=theirs.sum(axis=1).tolist(),
        arrangement=_spans(arrives.T[columns].ravel(), theirs.T[columns].ravel()),
        counts=counts,
    )


def spread_evenly(tokens: Ints) -> Ints:
    """Return counts (ranks, experts) with the same sum per rank, but spread evenly over the experts.

    Sums over the ranks differ by one at most, and the first experts have more: `Scheme.settle` splits these
    if a scheme balances gating.

    Args:
        tokens: (ranks, experts) counts.
    """
    experts = tokens.shape[1]
    ends = np.cumsum(tokens.sum(axis=1))[:, None]
    begins = ends - tokens.sum(axis=1)[:, None]
    # Token t of all goes to expert t modulo their number.
    numbers = np.arange(experts)
    until_end = (ends - numbers + experts - 1) // experts
    until_begin = (begins - numbers + experts - 1) // experts
    spread: Ints = until_end - until_begin
    return spread


def _before(lengths: Ints) -> Ints:
    before: Ints = np.cumsum(lengths) - lengths
    return before


def _spans(starts: Ints, lengths: Ints) -> Ints:
    """Return the indices of spans, one span after another."""
    return np.arange(int(lengths.sum())) + np.repeat(starts - _before(lengths), lengths)
