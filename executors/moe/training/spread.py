"""A model spread over ranks: each hosts some experts of each layer, and has all that is not experts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from executors.gang.meeting import lost_at
from executors.moe.block import moe_blocks
from executors.moe.parallel.coordination import AgreedOrder
from executors.moe.parallel.exchange import agreed_budget, exchange_experts
from executors.moe.parallel.experts import ParallelExperts
from executors.moe.parallel.gradients import GradientAverage, leave_out_of_averages
from executors.moe.parallel.groups import connect_expert_groups
from executors.moe.parallel.micro_ops import part_bytes
from executors.moe.parallel.offloading import put_together, split_like
from executors.moe.parallel.packing import MicroOpTimes, Packing, resident_experts
from executors.moe.parallel.planning import PlannedOrder
from executors.moe.parallel.scheduler import CommunicationScheduler
from executors.moe.parallel.trace import MicroOpRecord
from executors.moe.training.hosting import ExpertTensor, LayerExperts, Pieces
from executors.moe.training.memory import expert_budget
from executors.moe.training.objective import Call
from executors.moe.training.ordering import AgreedSteps, Ordering, PlannedSteps, StepOrder


@dataclass(frozen=True)
class Micro:
    """In which parts collectives are issued; the same on all ranks.

    Attributes:
        partition_bytes: the most of an allreduce micro-op.
        chunks: micro-ops of each all-to-all.
    """

    partition_bytes: int
    chunks: int

    @classmethod
    def of(cls, micro_op_mb: float, rank_tokens: int, token_bytes: int) -> "Micro":
        """Parts of so many megabytes at most.

        Args:
            rank_tokens: (token, expert) pairs of a rank in a step, at most.
        """
        partition_bytes = max(int(micro_op_mb * 2**20), torch.float64.itemsize)
        exchanged_bytes = rank_tokens * token_bytes
        chunk_bytes = part_bytes(exchanged_bytes, partition_bytes)
        return cls(partition_bytes, max(1, math.ceil(exchanged_bytes / chunk_bytes)))


class Connections:
    """One rank's connections, and the thread that issues what goes over them.

    Attributes:
        scheduler: issues collectives.
        steps: what each step has to do for their order.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        device: torch.device,
        host: str,
        timeout_s: float,
        ordering: Ordering | None = None,
        trace: list[MicroOpRecord] | None = None,
    ) -> None:
        """Connect; all ranks must do so at the same time, in the default process group.

        Args:
            host: where the others reach this rank.
            timeout_s: how long a rank may be late.
            ordering: how they come to one order of collectives. By default it is agreed on CPUs, and planned
                on CUDA devices, where collectives are handed over long before they run (erratum I3).
            trace: is told of each micro-op that has ended.

        Raises:
            CollectiveLostError, DisagreementError: see `AgreedOrder.connect`.
        """
        self.rank, self.world, self.device, self.timeout_s = rank, world, device, timeout_s
        self.steps: StepOrder
        if (ordering or ("planned" if device.type == "cuda" else "agreed")) == "planned":
            planned = PlannedOrder()
            self.scheduler = CommunicationScheduler(planned, rank, timeout_s, trace)
            self.steps = PlannedSteps(planned, self.scheduler, device, timeout_s)
        else:
            store = PrefixStore("collectives", dist.distributed_c10d._get_default_store())
            agreed = AgreedOrder.connect(store, rank, world, host, "", timeout_s)
            self.scheduler = CommunicationScheduler(agreed, rank, timeout_s, trace)
            self.steps = AgreedSteps()

    @property
    def everyone(self) -> dist.ProcessGroup:
        """All ranks."""
        group = dist.group.WORLD
        assert group is not None, "the process group was formed"
        return group

    def close(self) -> None:
        """End the thread, once all ranks are done with each other."""
        self.scheduler.close()


class SpreadModel:
    """One rank's part of a model whose experts are spread.

    Attributes:
        packing: which rank hosts what.
        layers: the experts of each MoE layer, as the whole model has them.
        call: the model, as a pass calls it.
        dense: all that is trained beside experts, by name; the same on all ranks.
        resident: how many of the experts that a rank hosts of each layer stay on its device; the others are
            in the host's memory. The same on all ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        connections: Connections,
        packing: Packing,
        micro_op_mb: float,
        tokens: int,
        expert_memory_gib: float | None = None,
    ) -> None:
        """Take a whole model apart, on all ranks at the same time.

        Args:
            tokens: (token, expert) pairs of a rank in a step, at most.
            expert_memory_gib: see `expert_budget`.

        Raises:
            PeerLostError: a rank does not come.
            ValueError: a device has no room for one expert. All ranks raise it.
        """
        self._connections = connections
        blocks = moe_blocks(module)
        self._blocks = list(blocks.values())
        self.layers = [LayerExperts(name, block) for name, block in blocks.items()]
        module.to(connections.device)
        self.dense = {name: each for name, each in module.named_parameters() if each.requires_grad}
        token_bytes = self.layers[0].hidden * next(module.parameters()).element_size()
        self._micro = Micro.of(micro_op_mb, tokens, token_bytes)
        own_budget = expert_budget(expert_memory_gib, connections.device, self.dense.values())
        with lost_at("the memory for experts", connections.timeout_s):
            self._budget_bytes = agreed_budget(own_budget)
        self._connect(packing)
        span = packing.hosted(connections.rank)
        self._hosted: list[dict[str, Pieces]] = [{} for _ in self.layers]
        for index, layer in enumerate(self.layers):
            # Copies, so that the whole can be let go.
            self._host(
                index,
                {
                    part: tensor[span.start : span.stop].clone(memory_format=torch.contiguous_format)
                    for part, tensor in layer.take().items()
                },
            )
        self.call = self._averaged(module)

    @property
    def experts(self) -> int:
        """Of each layer."""
        return self.packing.experts

    @property
    def is_offloading(self) -> bool:
        """Whether some experts are in the host's memory."""
        return self.resident < self.packing.per_device

    def trained_experts(self) -> Iterator[tuple[ExpertTensor, Pieces]]:
        """What is trained of the experts here, layer by layer."""
        for layer, hosted in zip(self.layers, self._hosted, strict=True):
            for tensor in layer.tensors:
                if tensor.is_trained:
                    yield tensor, hosted[tensor.part]

    def take_times(self) -> MicroOpTimes | None:
        """Means over this rank's passes since the last call, and over layers; None without any pass."""
        times = [each for layer in self._parallel if (each := layer.take_times()) is not None]
        if not times:
            return None
        return MicroOpTimes(
            fmean(each.all_to_all_s for each in times), fmean(each.feed_forward_s for each in times)
        )

    def pack(self, packing: Packing, moments: dict[nn.Parameter, tuple[Tensor, Tensor]]) -> None:
        """Host experts by another packing, on all ranks at the same time, and choose anew which of them stay
        on the device.

        DistributedDataParallel stays as it is, since it has nothing of the experts.

        Args:
            moments: what an optimizer keeps of each parameter. Those of the experts before are taken out of
                it, layer by layer, and those of the experts from now on put in.

        Raises:
            CollectiveLostError: a rank is gone.
        """
        before, was_offloading = self.packing, self.is_offloading
        with lost_at("packing experts anew", self._connections.timeout_s):
            self._connect(packing)
            through_host = was_offloading or self.is_offloading
            for index, layer in enumerate(self.layers):
                leaving = self._take(index, moments, through_host)
                arrived = iter(exchange_experts(leaving, before, packing, self._connections.rank))
                # Layer by layer, so that there are never two packings' experts of all layers.
                del leaving
                self._host(index, {each.part: next(arrived) for each in layer.tensors})
                for part in (each.part for each in layer.tensors if each.is_trained):
                    pieces = self._hosted[index][part]
                    first, second = (_placed_like(next(arrived), pieces) for _ in range(2))
                    moments.update(zip(pieces, zip(first, second, strict=True), strict=True))
        self._connections.steps.packed()

    def _take(
        self, index: int, moments: dict[nn.Parameter, tuple[Tensor, Tensor]], through_host: bool
    ) -> list[Tensor]:
        """A layer's tensors, stacked by expert, and then both moments of each that is trained; they are let
        go here."""
        hosted, self._hosted[index] = self._hosted[index], {}
        self._blocks[index].experts = nn.Identity()
        taken = [_whole(hosted[each.part], through_host) for each in self.layers[index].tensors]
        for each in self.layers[index].tensors:
            if each.is_trained:
                of_pieces = [moments.pop(piece) for piece in hosted[each.part]]
                taken += [_whole(moment, through_host) for moment in zip(*of_pieces, strict=True)]
        return taken

    def _connect(self, packing: Packing) -> None:
        """Choose which experts stay on the device, and form groups."""
        connections = self._connections
        self.resident = packing.per_device
        if self._budget_bytes is not None:
            is_autocast = connections.device.type == "cuda"
            sizes = [layer.bytes_of_one(self._micro.chunks, is_autocast=is_autocast) for layer in self.layers]
            self.resident = min(
                resident_experts(packing.per_device, len(self.layers), size, self._budget_bytes)
                for size in sizes
            )
        self.packing = packing
        self._groups = connect_expert_groups(
            packing, connections.rank, connections.device, connections.timeout_s
        )
        self._average = GradientAverage(
            connections.scheduler, self._groups.replicas, connections.world, self._micro.partition_bytes
        )

    def _host(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        connections = self._connections
        experts, self._hosted[index] = self.layers[index].host(tensors, self.resident, connections.device)
        self._blocks[index].experts = ParallelExperts(
            experts,
            self._groups,
            connections.scheduler,
            self._average,
            f"layer {index}",
            self._micro.chunks,
        )

    @property
    def _parallel(self) -> list[ParallelExperts]:
        return [cast(ParallelExperts, block.experts) for block in self._blocks]

    def _averaged(self, module: nn.Module) -> Call:
        if not self.dense:
            return module
        leave_out_of_averages(module, self._parallel)
        # All ranks have loaded the same: nothing needs to be sent.
        wrapped = DistributedDataParallel(module, forward_sync_buffers=False, init_sync=False)
        connections = self._connections
        GradientAverage(
            connections.scheduler, connections.everyone, connections.world, self._micro.partition_bytes
        ).attach(wrapped)
        return wrapped


def _whole(pieces: Sequence[Tensor], through_host: bool) -> Tensor:
    """A tensor of the hosted experts from its pieces."""
    return put_together(pieces) if through_host else pieces[0].detach()


def _placed_like(stacked: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
    """What an optimizer keeps, where its parameters are."""
    return [
        part.to(piece.device) if len(pieces) == 1 else part.to(piece.device, copy=True)
        for part, piece in zip(split_like(stacked, pieces), pieces, strict=True)
    ]
