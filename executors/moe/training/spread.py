"""A model spread over ranks: each hosts some experts of each layer, and has all that is not experts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from executors.moe.block import moe_blocks
from executors.moe.parallel.coordination import AgreedOrder
from executors.moe.parallel.exchange import exchange_experts
from executors.moe.parallel.experts import ParallelExperts
from executors.moe.parallel.gradients import GradientAverage, leave_out_of_averages
from executors.moe.parallel.groups import connect_expert_groups
from executors.moe.parallel.packing import MicroOpTimes, Packing
from executors.moe.parallel.planning import PlannedOrder
from executors.moe.parallel.scheduler import CommunicationScheduler
from executors.moe.parallel.trace import MicroOpRecord
from executors.moe.training.hosting import ExpertTensor, LayerExperts
from executors.moe.training.objective import Call
from executors.moe.training.ordering import AgreedSteps, Ordering, PlannedSteps, StepOrder
from executors.moe.training.peers import lost_at


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
        return cls(partition_bytes, max(1, math.ceil(rank_tokens * token_bytes / partition_bytes)))


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
        hosted: of each layer, what is trained of its experts here, by its `part`.
    """

    def __init__(
        self, module: nn.Module, connections: Connections, packing: Packing, micro_op_mb: float, tokens: int
    ) -> None:
        """Take a whole model apart, on all ranks at the same time.

        Args:
            tokens: (token, expert) pairs of a rank in a step, at most.

        Raises:
            PeerLostError: a rank does not come.
        """
        self._connections = connections
        self._blocks = moe_blocks(module)
        self.layers = [LayerExperts(name, block) for name, block in self._blocks.items()]
        module.to(connections.device)
        self.dense = {name: each for name, each in module.named_parameters() if each.requires_grad}
        token_bytes = self.layers[0].hidden * next(module.parameters()).element_size()
        self._micro = Micro.of(micro_op_mb, tokens, token_bytes)
        span = packing.hosted(connections.rank)
        whole = (layer.take() for layer in self.layers)
        self._tensors: list[dict[str, Tensor]] = [
            {
                part: tensor[span.start : span.stop].to(connections.device, copy=True)
                for part, tensor in of_layer.items()
            }
            for of_layer in whole
        ]
        self._host(packing)
        self.call = self._averaged(module)

    @property
    def experts(self) -> int:
        """Of each layer."""
        return self.packing.experts

    def trained_experts(self) -> Iterator[tuple[ExpertTensor, nn.Parameter]]:
        """What is trained of the experts here, layer by layer."""
        for layer, hosted in zip(self.layers, self.hosted, strict=True):
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

    def pack(self, packing: Packing, moments: Sequence[Mapping[str, Sequence[Tensor]]]) -> list[list[Tensor]]:
        """Host experts by another packing, on all ranks at the same time.

        DistributedDataParallel stays as it is, since it has nothing of the experts.

        Args:
            moments: of each layer, what an optimizer keeps of each part of `hosted`.

        Returns:
            The moments of the experts that are hosted from now on, as `trained_experts` names them.

        Raises:
            CollectiveLostError: a rank is gone.
        """
        moved: list[list[Tensor]] = []
        with lost_at("packing experts anew", self._connections.timeout_s):
            for index, layer in enumerate(self.layers):
                of_layer = self._tensors[index]
                kept = moments[index]
                parts = [each.part for each in layer.tensors]
                flat = [of_layer[part] for part in parts]
                flat += [tensor for part in parts for tensor in kept.get(part, ())]
                arrived = exchange_experts(flat, self.packing, packing, self._connections.rank)
                self._tensors[index] = dict(zip(parts, arrived, strict=False))
                rest = iter(arrived[len(parts) :])
                moved += [[next(rest) for _ in kept[part]] for part in parts if part in kept]
            self._host(packing)
        self._connections.steps.packed()
        return moved

    def _host(self, packing: Packing) -> None:
        connections = self._connections
        groups = connect_expert_groups(packing, connections.rank, connections.device, connections.timeout_s)
        average = GradientAverage(
            connections.scheduler, groups.replicas, connections.world, self._micro.partition_bytes
        )
        self.packing = packing
        self.hosted: list[dict[str, nn.Parameter]] = []
        self._parallel: list[ParallelExperts] = []
        for index, (layer, block) in enumerate(zip(self.layers, self._blocks.values(), strict=True)):
            experts, parameters = layer.host(self._tensors[index])
            self._tensors[index] = {part: each.detach() for part, each in parameters.items()}
            parallel = ParallelExperts(
                experts, groups, connections.scheduler, average, f"layer {index}", self._micro.chunks
            )
            block.experts = parallel
            self.hosted.append({part: each for part, each in parameters.items() if each.requires_grad})
            self._parallel.append(parallel)

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
