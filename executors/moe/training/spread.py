"""A model spread over ranks: each hosts some experts of each layer, and all other parameters."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from executors.moe.parallel.expert_groups import connect_expert_groups
from executors.moe.parallel.experts import ParallelExperts
from executors.moe.parallel.gradients import GradientAverage, leave_out_of_averages
from executors.moe.parallel.micro_ops import MicroOpRecord, part_bytes
from executors.moe.parallel.offloading import put_together, split_like
from executors.moe.parallel.packing import MicroOpTimes, Packing, resident_experts
from executors.moe.parallel.planning import PlannedOrder
from executors.moe.parallel.scheduler import CommunicationScheduler
from executors.moe.training.hosting import ExpertTensor, LayerExperts, Pieces
from executors.moe.training.objective import Call
from executors.moe.training.ordering import Ordering, PlannedSteps, StepOrder

RESERVED_RATIO = 0.25
"""Share of the memory without the dense part that is kept free for activations, for tokens and gradients in
transit, and for fragments of torch's allocator. A step's real need depends on the model and the batch, so the
node's setting can be more exact."""

_OF_TRAINED = 4
"""Additional memory of a dense parameter in training, in sizes of the parameter: for its gradient, the bucket
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


@dataclass(frozen=True)
class Micro:
    """Sizes of the parts in which collectives are issued; the same on all ranks.

    Attributes:
        partition_bytes: most bytes of an allreduce micro-op.
        chunks: micro-ops of each all-to-all.
    """

    partition_bytes: int
    chunks: int

    @classmethod
    def of(cls, micro_op_mb: float, rank_tokens: int, token_bytes: int) -> "Micro":
        """Return parts of at most `micro_op_mb` megabytes.

        Args:
            rank_tokens: most (token, expert) pairs of a rank in a step.
        """
        partition_bytes = max(int(micro_op_mb * 2**20), torch.float64.itemsize)
        exchanged_bytes = rank_tokens * token_bytes
        chunk_bytes = part_bytes(exchanged_bytes, partition_bytes)
        return cls(partition_bytes, max(1, math.ceil(exchanged_bytes / chunk_bytes)))


class Connections:
    """Connections of one rank, and the thread that issues its collectives.

    Attributes:
        scheduler: issues collectives.
        steps: maintenance of the order, by step.
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
            host: address at which the others reach this rank.
            timeout_s: most time by which a rank may be late.
            ordering: method for one order of collectives. Default: agreed on CPUs, and planned on CUDA
                devices, where collectives are submitted long before they run (erratum I3).
            trace: receives the record of each micro-op at its end.

        Raises:
            CollectiveLostError, DisagreementError: see `AgreedOrder.connect`.
        """
        self.rank, self.world, self.device, self.timeout_s = rank, world, device, timeout_s
        self.steps = StepOrder()
        if (ordering or ("planned" if device.type == "cuda" else "agreed")) == "planned":
            planned = PlannedOrder()
            self.scheduler = CommunicationScheduler(planned, rank, timeout_s, trace)
            self.steps = PlannedSteps(planned, self.scheduler, device, timeout_s)
        else:
            store = PrefixStore("collectives", dist.distributed_c10d._get_default_store())
            agreed = AgreedOrder.connect(store, rank, world, host, "", timeout_s)
            self.scheduler = CommunicationScheduler(agreed, rank, timeout_s, trace)

    @property
    def everyone(self) -> dist.ProcessGroup:
        group = dist.group.WORLD
        assert group is not None, "the process group was formed"
        return group

    def close(self) -> None:
        """End the thread, once all ranks have finished their collectives."""
        self.scheduler.close()


class SpreadModel:
    """One rank's part of a model with distributed experts.

    Attributes:
        packing: assignment of experts to ranks.
        layers: experts of each MoE layer, in the form of the whole model.
        call: the model, as called in a pass.
        dense: all trained parameters besides those of experts, by name; the same on all ranks.
        resident: number of experts per layer that stay on a rank's device, the same on all ranks. The other
            experts are in the host's memory.
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
        """Divide a whole model, on all ranks at the same time.

        Args:
            tokens: most (token, expert) pairs of a rank in a step.
            expert_memory_gib: see `expert_budget`.

        Raises:
            PeerLostError: a rank does not connect.
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
            # Copies, so that the whole model can be freed.
            self._host(
                index,
                {
                    part: tensor[span.start : span.stop].clone(memory_format=torch.contiguous_format)
                    for part, tensor in layer.remove_tensors().items()
                },
            )
        self.call = self._averaged(module)

    @property
    def experts(self) -> int:
        return self.packing.experts

    @property
    def is_offloading(self) -> bool:
        """Whether some experts are in the host's memory."""
        return self.resident < self.packing.per_device

    def trained_experts(self) -> Iterator[tuple[ExpertTensor, Pieces]]:
        """Yield the trained tensors of the experts here, layer by layer."""
        for layer, hosted in zip(self.layers, self._hosted, strict=True):
            for tensor in layer.tensors:
                if tensor.is_trained:
                    yield tensor, hosted[tensor.part]

    def pop_times(self) -> MicroOpTimes | None:
        """Remove and return mean times over this rank's passes since the last call, and over layers; None
        without any pass."""
        times = [each for layer in self._parallel if (each := layer.pop_times()) is not None]
        if not times:
            return None
        return MicroOpTimes(
            fmean(each.all_to_all_s for each in times), fmean(each.feed_forward_s for each in times)
        )

    def pop_exchange_s(self) -> float:
        """Return the time of this rank's all-to-alls since the last call, of all layers (s)."""
        return sum(layer.pop_exchange_s() for layer in self._parallel)

    def pack(self, packing: Packing, moments: dict[nn.Parameter, tuple[Tensor, Tensor]]) -> None:
        """Host experts by another packing, on all ranks at the same time, and choose again which of them stay
        on the device.

        DistributedDataParallel stays unchanged, since it has no parameters of the experts.

        Args:
            moments: an optimizer's moments of each parameter. Layer by layer, the moments of the former
                experts are replaced by those of the new experts.
        """
        before, was_offloading = self.packing, self.is_offloading
        with lost_at("repacking experts", self._connections.timeout_s):
            self._connect(packing)
            through_host = was_offloading or self.is_offloading
            for index, layer in enumerate(self.layers):
                leaving = self._detach(index, moments, through_host)
                arrived = iter(exchange_experts(leaving, before, packing, self._connections.rank))
                # Layer by layer, so that the experts of both packings never exist for all layers at once.
                del leaving
                self._host(index, {each.part: next(arrived) for each in layer.tensors})
                for part in (each.part for each in layer.tensors if each.is_trained):
                    pieces = self._hosted[index][part]
                    first, second = (_placed_like(next(arrived), pieces) for _ in range(2))
                    moments.update(zip(pieces, zip(first, second, strict=True), strict=True))
        self._connections.steps.packed()

    def _detach(
        self, index: int, moments: dict[nn.Parameter, tuple[Tensor, Tensor]], through_host: bool
    ) -> list[Tensor]:
        """Remove and return a layer's tensors, stacked by expert, then both moments of each trained one."""
        hosted, self._hosted[index] = self._hosted[index], {}
        self._blocks[index].experts = nn.Identity()
        detached = [_whole(hosted[each.part], through_host) for each in self.layers[index].tensors]
        for each in self.layers[index].tensors:
            if each.is_trained:
                of_pieces = [moments.pop(piece) for piece in hosted[each.part]]
                detached += [_whole(moment, through_host) for moment in zip(*of_pieces, strict=True)]
        return detached

    def _connect(self, packing: Packing) -> None:
        """Choose the experts that stay on the device, and form groups."""
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
        # All ranks have loaded the same weights: none need to be sent.
        wrapped = DistributedDataParallel(module, forward_sync_buffers=False, init_sync=False)
        connections = self._connections
        GradientAverage(
            connections.scheduler, connections.everyone, connections.world, self._micro.partition_bytes
        ).attach(wrapped)
        return wrapped


def _whole(pieces: Sequence[Tensor], through_host: bool) -> Tensor:
    """Return a tensor of the hosted experts from its pieces."""
    return put_together(pieces) if through_host else pieces[0].detach()


def _placed_like(stacked: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
    """Return an optimizer's tensors in the memory of their parameters."""
    return [
        part.to(piece.device) if len(pieces) == 1 else part.to(piece.device, copy=True)
        for part, piece in zip(split_like(stacked, pieces), pieces, strict=True)
    ]
