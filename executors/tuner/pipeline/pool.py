"""The processes of a pipeline: each joins with its rank, and holds its part of the base model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from executors.gang.network import use_interface
from executors.tuner.pipeline.group import StageGroup
from executors.tuner.pipeline.partition import Direction, PartitionError, cut, stage_of
from executors.tuner.pipeline.sideline import Sideline
from executors.tuner.pipeline.structure import StageWeights, Structure, load_structure, parameter_costs
from executors.tuner.pipeline.trace import Trace


class Pipeline:
    """One rank of a pool of processes that train tasks together, one stage each.

    It outlives tasks: a switch loads adapter, moments and data, and no process, model or connection. Close it
    when the process leaves or anything fails: the others see that at once.

    The ranks may be those of several pipelines, of `stages` neighbours each, which share a task's batches.

    Attributes:
        rank: this process's, from 0.
        world: how many ranks there are.
        stages: of each pipeline.
        position: this rank's in its pipeline, from 0.
        replica: the number of its pipeline, from 0.
        device: where this rank computes.
        structure: the entire model.
        partition: the layers of each stage.
        weights: the stages that are held; None if the whole model is.
        group: the connections.
        trace: what this rank did when.
        loads: brings tasks to the device beside the training.
        stores: finishes tasks and brings them to host memory beside the training of the next.
    """

    def __init__(
        self,
        structure: Structure,
        partition: Sequence[range],
        weights: StageWeights | None,
        group: StageGroup,
        device: torch.device,
        trace: Trace,
    ) -> None:
        self.rank = group.rank
        self.world = group.world
        self.stages = group.stages
        self.replica, self.position = divmod(group.rank, group.stages)
        self.device = device
        self.structure = structure
        self.partition = tuple(partition)
        self.weights = weights
        self.group = group
        self.trace = trace
        self.loads = Sideline("load", device)
        self.stores = Sideline("store", device)

    @property
    def replicas(self) -> int:
        """How many pipelines there are."""
        return self.world // self.stages

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stage(self, direction: Direction) -> int:
        """The stage that this rank runs for tasks of a direction."""
        return stage_of(self.position, self.stages, direction)

    def rank_of(self, stage: int, direction: Direction) -> int:
        """The rank that runs a stage in this rank's pipeline."""
        return self.replica * self.stages + stage_of(stage, self.stages, direction)

    def read(self, stage: int) -> Mapping[str, Tensor] | None:
        """A stage's parameters in host memory, as `hold` needs them; None if it is held."""
        if self.weights is None or self.weights.holds(stage):
            return None
        return self.weights.read(stage)

    def hold(self, stage: int, tensors: Mapping[str, Tensor] | None) -> None:
        """Have a stage on the device, in place of others if there is no room for both.

        Args:
            stage: which.
            tensors: what `read` gave for it.
        """
        if self.weights is None or self.weights.holds(stage):
            return
        for other in range(self.stages):
            if self.weights.holds(other):
                self.weights.drop(other)
        self.weights.place(stage, self.weights.read(stage) if tensors is None else tensors)

    def agree(self, wish: int) -> int:
        """The highest of the numbers that all ranks say; for example, whether anybody wants to stop.

        Raises:
            StageLostError: a rank does not answer.
        """
        return int(max(wishes[0] for wishes in self.group.control.exchange([wish])))

    def close(self) -> None:
        """Leave. Tasks that are still being finished are not."""
        self.loads.close()
        self.stores.close()
        self.group.close()


def join_pipeline(
    store: Store,
    rank: int,
    world: int,
    directory: Path,
    device: torch.device | str = "cpu",
    *,
    stages: int | None = None,
    host: str = "127.0.0.1",
    join_timeout_s: float = 300.0,
    peer_timeout_s: float = 60.0,
    layer_costs: Sequence[float] | None = None,
    device_memory_bytes: int | None = None,
    traced: bool = True,
) -> Pipeline:
    """Load this rank's part of a model and meet the others; all ranks do so, with the same arguments.

    Args:
        store: a store of torch.distributed that all ranks reach, with no keys of an earlier pipeline in it.
        rank: from 0 to ``world - 1``.
        world: ranks.
        stages: of each pipeline; `world` must be a multiple of it, which several pipelines share. As many as
            there are ranks if not given.
        directory: of the base model.
        device: of this rank.
        host: an address of this machine, over whose network interface the ranks connect.
        join_timeout_s: how long to wait for ranks that still load.
        peer_timeout_s: how long to wait for any message later; longer than the longest step.
        layer_costs: of each layer, to cut by, as `measured_costs` gives; its parameters if not given.
        device_memory_bytes: what parameters of the base may take on this rank's device. If the stages for
            both directions fit, both are kept there, and else one at a time. If not given, half of what is
            free on a CUDA device, since activations need room as well, and no limit on a CPU.
        traced: whether to keep a trace.

    Raises:
        PartitionError: the model cannot be cut so, or a stage does not fit the memory.
        BaseModelError: there is no such model, or it cannot be cut.
        StageLostError: another rank does not come in time.
        OSError: the host is another machine.
    """
    device = torch.device(device)
    stages = world if stages is None else stages
    if world % stages:
        raise PartitionError(f"{world} ranks for pipelines of {stages} stages")
    use_interface(host)
    structure = load_structure(directory, device)
    costs = parameter_costs(structure) if layer_costs is None else layer_costs
    if len(costs) != len(structure.layers):
        raise PartitionError(f"{len(costs)} costs for {len(structure.layers)} layers")
    weights = StageWeights(structure, cut(costs, stages), device)
    if device_memory_bytes is None and device.type == "cuda":
        device_memory_bytes = torch.cuda.mem_get_info(device)[0] // 2
    _place(weights, rank % stages, stages, device_memory_bytes)
    group = StageGroup(store, rank, world, stages, device, join_timeout_s, peer_timeout_s)
    return Pipeline(structure, weights.partition, weights, group, device, Trace(rank, device, enabled=traced))


def _place(weights: StageWeights, position: int, stages: int, limit_bytes: int | None) -> None:
    held = [stage_of(position, stages, "forward")]
    both = {*held, stage_of(position, stages, "reverse")}
    if limit_bytes is None or weights.size_bytes(both) <= limit_bytes:
        held = sorted(both)
    for stage in both:
        size_bytes = weights.size_bytes({stage})
        if limit_bytes is not None and size_bytes > limit_bytes:
            raise PartitionError(
                f"stage {stage} takes {size_bytes} bytes, and {limit_bytes} are allowed: use more stages"
            )
    for stage in held:
        weights.place(stage, weights.read(stage))
