"""Experts of a layer on several devices: tokens are sent to their experts and back."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from executors.moe.parallel.expert_groups import ExpertGroups
from executors.moe.parallel.gradients import GradientAverage
from executors.moe.parallel.micro_ops import Pending
from executors.moe.parallel.packing import MicroOpTimes
from executors.moe.parallel.scheduler import Communication


@dataclass(frozen=True)
class ChunkRoute:
    """One chunk of a layer's rows, on one rank.

    Attributes:
        rows: ``(sent,)`` int64, indices of the rank's rows in the chunk, by destination and expert; None if
            the chunk has all of them, in order.
        sent: number of rows to each rank of the group.
        received: number of rows from each rank of the group.
        order: ``(received,)`` int64, the received rows sorted by expert; None if they arrive so.
        counts: ``(hosted experts,)`` int64, received rows of each.
    """

    rows: Tensor | None
    sent: Sequence[int]
    received: Sequence[int]
    order: Tensor | None
    counts: Tensor


def routes(sent: Tensor, received: Tensor, chunks: int, device: torch.device) -> list[ChunkRoute]:
    """Cut each expert's rows into chunks of nearly equal numbers.

    Args:
        sent: ``(ranks, hosted)`` int64 on the CPU, number of this rank's rows for each expert of each rank.
        received: ``(ranks, hosted)`` int64 on the CPU, number of each rank's rows for each expert of this
            one.
        device: device of the rows.
    """
    starts = (sent.flatten().cumsum(0) - sent.flatten()).view_as(sent)
    made = []
    for chunk in range(chunks):
        begins, ends = sent * chunk // chunks, sent * (chunk + 1) // chunks
        mine, theirs = ends - begins, received * (chunk + 1) // chunks - received * chunk // chunks
        arrives = (theirs.flatten().cumsum(0) - theirs.flatten()).view_as(theirs)
        made.append(
            ChunkRoute(
                rows=None if chunks == 1 else _spans(starts + begins, mine).to(device),
                sent=mine.sum(1).tolist(),
                received=theirs.sum(1).tolist(),
                # With one expert, or from one rank, they arrive in order.
                order=None if 1 in theirs.shape else _spans(arrives.T, theirs.T).to(device),
                counts=theirs.sum(0).to(device),
            )
        )
    return made


def _spans(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the indices of spans, one span after another."""
    starts, lengths = starts.flatten(), lengths.flatten()
    skipped = starts - (lengths.cumsum(0) - lengths)
    return torch.arange(int(lengths.sum())) + skipped.repeat_interleave(lengths)


@dataclass(frozen=True)
class _Parcel:
    """Rows in transit. The sent tensor is kept until its arrival."""

    sent: Tensor
    arrived: Tensor
    pending: Pending

    def wait(self) -> Tensor:
        self.pending.wait()
        return self.arrived


@dataclass
class _Pass:
    """A forward pass that a backward pass may follow: inputs and outputs of the experts, by chunk."""

    routes: list[ChunkRoute]
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class ParallelExperts(nn.Module):
    """Experts of which this rank hosts a part; called as if it hosted all (thesis, section 4.4.2).

    Rows are cut into chunks; each chunk goes to the ranks that host its experts in one all-to-all micro-op,
    and comes back in another, while the experts compute the chunk before. Each rank of the group must call it
    the same number of times, forward and backward, with or without rows.

    Gradients of the hosted experts are of the average loss over all ranks, like those of the other
    parameters. They are added to ``grad`` at the end of the backward pass, after the sum over an expert's
    replicas.
    """

    def __init__(
        self,
        experts: nn.Module,
        groups: ExpertGroups,
        scheduler: Communication,
        average: GradientAverage,
        name: str,
        chunks: int = 1,
    ) -> None:
        """Distribute a layer's experts.

        Args:
            experts: experts that this rank hosts; maps rows ``(pairs, hidden)`` sorted by expert and counts
                ``(hosted experts,)`` to rows of the same shape. Gradients are in the memory of their
                parameters: on the rows' device or in the host's memory.
            average: average over the group's replicas, divided by all ranks.
            name: name of the layer, the same on all ranks.
            chunks: micro-ops of each all-to-all, the same on all ranks.

        Raises:
            ValueError: there is no chunk.
        """
        super().__init__()
        if chunks < 1:
            raise ValueError(f"{name}: {chunks} chunks of tokens; it needs at least one")
        self.experts = experts
        self.name = name
        self.chunks = chunks
        self._groups = groups
        self._scheduler = scheduler
        self._average = average
        self._computing_s: list[float] = []
        self._exchanging_s: list[float] = []
        self._exchanged_s = 0.0

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network of its expert, on any rank.

        Args:
            rows: ``(pairs, hidden)``, sorted by expert.
            counts: ``(experts,)`` int64, rows of each of the layer's experts.

        Returns:
            ``(pairs, hidden)``.

        Raises:
            ValueError: the counts do not fit the layer's experts.
            CollectiveLostError, DisagreementError: an all-to-all cannot end; in the backward pass, too.
        """
        packing = self._groups.packing
        if len(counts) != packing.experts:
            raise ValueError(f"{self.name}: counts of {len(counts)} experts; the layer has {packing.experts}")
        outputs: Tensor = _Spread.apply(self, torch.is_grad_enabled(), rows, counts, *self._trained())
        return outputs

    def pop_times(self) -> MicroOpTimes | None:
        """Remove and return the mean times of the forward passes since the last call, by this process's
        clock; None without any.

        On CUDA devices, the clock does not measure the device's work.
        """
        if not self._computing_s:
            return None
        times = MicroOpTimes(fmean(self._exchanging_s), fmean(self._computing_s))
        self._computing_s, self._exchanging_s = [], []
        return times

    def pop_exchange_s(self) -> float:
        """Return the time of all all-to-alls since the last call (s), one after another; on a CUDA device,
        only that of their submission."""
        total_s, self._exchanged_s = self._exchanged_s, 0.0
        return total_s

    def _arrived(self, parcel: _Parcel) -> Tensor:
        rows = parcel.wait()
        self._exchanged_s += parcel.pending.duration_s
        return rows

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.experts.parameters() if parameter.requires_grad]

    def _compute_forward(self, rows: Tensor, counts: Tensor, is_trained: bool) -> tuple[Tensor, _Pass]:
        passed = _Pass(self._plan_routes(counts))
        label = f"{self.name} forward"
        arriving = [
            self._send(rows if route.rows is None else rows.index_select(0, route.rows), route, label)
            for route in passed.routes
        ]
        self._expect(len(arriving))
        returning = []
        for route, parcel in zip(passed.routes, arriving, strict=True):
            inputs = _sorted(self._arrived(parcel), route).requires_grad_(is_trained)
            began_s = time.monotonic()
            with torch.set_grad_enabled(is_trained):
                outputs = self.experts(inputs, route.counts)
            self._computing_s.append(time.monotonic() - began_s)
            self._exchanging_s.append(parcel.pending.duration_s)
            if is_trained:
                passed.inputs.append(inputs)
                passed.outputs.append(outputs)
            returning.append(self._send_back(_unsorted(outputs.detach(), route), route, label))
        return self._collect(rows, passed.routes, returning), passed

    def _compute_backward(self, gradient: Tensor, passed: _Pass) -> Tensor:
        trained = self._trained()
        label = f"{self.name} backward"
        gradient = gradient.contiguous()
        arriving = [
            self._send(gradient if route.rows is None else gradient.index_select(0, route.rows), route, label)
            for route in passed.routes
        ]
        self._expect(len(arriving))
        returning = []
        sums = [torch.zeros_like(parameter) for parameter in trained]
        for index, (route, parcel) in enumerate(zip(passed.routes, arriving, strict=True)):
            of_inputs, *of_parameters = torch.autograd.grad(
                passed.outputs[index],
                [passed.inputs[index], *trained],
                _sorted(self._arrived(parcel), route),
                allow_unused=True,
            )
            returning.append(self._send_back(_unsorted(of_inputs, route), route, label))
            for total, part in zip(sums, of_parameters, strict=True):
                if part is not None:
                    total += part
        passed.inputs.clear()
        passed.outputs.clear()
        self._deliver(trained, sums, gradient.device)
        return self._collect(gradient, passed.routes, returning)

    def _plan_routes(self, counts: Tensor) -> list[ChunkRoute]:
        packing = self._groups.packing
        sent = counts.to(torch.int64).view(packing.group_size, packing.per_device).contiguous()
        chunks = 1 if self._is_alone else self.chunks
        each = [1] * packing.group_size
        received = self._arrived(self._exchange(sent, each, each, f"{self.name} counts"))
        return routes(sent.cpu(), received.cpu(), chunks, counts.device)

    def _send(self, rows: Tensor, route: ChunkRoute, label: str) -> _Parcel:
        return self._exchange(rows, route.sent, route.received, f"{label} dispatch")

    def _send_back(self, rows: Tensor, route: ChunkRoute, label: str) -> _Parcel:
        return self._exchange(rows, route.received, route.sent, f"{label} combine")

    def _exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int], label: str) -> _Parcel:
        if self._is_alone:
            pending = Pending()
            pending.settle(None)
            return _Parcel(rows, rows, pending)
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        pending = self._scheduler.all_to_all(arrived, rows, received, sent, self._groups.tokens, label)
        return _Parcel(rows, arrived, pending)

    def _expect(self, count: int) -> None:
        if not self._is_alone:
            self._scheduler.expect_all_to_alls(count)

    @property
    def _is_alone(self) -> bool:
        return self._groups.packing.group_size == 1

    def _collect(self, like: Tensor, made: Sequence[ChunkRoute], returning: "Sequence[_Parcel]") -> Tensor:
        collected = torch.empty_like(like)
        for route, parcel in zip(made, returning, strict=True):
            if route.rows is None:
                return self._arrived(parcel)
            collected.index_copy_(0, route.rows, self._arrived(parcel))
        return collected

    def _deliver(
        self, trained: Sequence[nn.Parameter], gradients: Sequence[Tensor], device: torch.device
    ) -> None:
        """Average gradients over the replicas in the background, and add them to `grad` at the end of the
        pass."""
        futures = [
            self._average.average(
                gradient.view(-1),
                f"{self.name} expert gradient {index}",
                None if gradient.device == device else device,
            )
            for index, gradient in enumerate(gradients)
        ]

        def add() -> None:
            for parameter, gradient, future in zip(trained, gradients, futures, strict=True):
                future.wait()
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

        torch.autograd.Variable._execution_engine.queue_callback(add)


class _Spread(torch.autograd.Function):
    """The forward and the backward pass of `ParallelExperts`."""

    @staticmethod
    def forward(
        context: Any,
        layer: ParallelExperts,
        is_trained: bool,
        rows: Tensor,
        counts: Tensor,
        *trained: nn.Parameter,
    ) -> Tensor:
        is_trained = is_trained and (rows.requires_grad or bool(trained))
        outputs, context.passed = layer._compute_forward(rows.detach().contiguous(), counts, is_trained)
        context.layer, context.others = layer, len(trained)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_rows = context.layer._compute_backward(gradient, context.passed)
        return None, None, of_rows, None, *[None] * context.others


def _sorted(rows: Tensor, route: ChunkRoute) -> Tensor:
    return rows.detach() if route.order is None else rows.index_select(0, route.order)


def _unsorted(rows: Tensor, route: ChunkRoute) -> Tensor:
    if route.order is None:
        return rows.contiguous()
    return torch.empty_like(rows).index_copy_(0, route.order, rows)
