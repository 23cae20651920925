"""Processes of a pipeline: each joins as a rank, and holds its part of the base model."""

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


class PipelineRank:
    """One rank of a pool of processes that train tasks together, one stage each.

    It outlives tasks: a switch loads adapter, moments and data, but no process, model or connection. Close it
    when the process leaves or anything fails: the others detect that at once.

    The ranks may form several pipelines of `stages` neighbours each, which share a task's batches.

    Attributes:
        rank: rank of this process, from 0.
        world: number of ranks.
        stages: stages of each pipeline.
        position: place of this rank in its pipeline, from 0.
        replica: number of its pipeline, from 0.
        device: device of this rank.
        structure: the entire model.
        partition: the layers of each stage.
        weights: the stages that are held; None if the whole model is.
        group: the connections.
        trace: spans of this rank's work.
        loads: loads tasks to the device during the training.
        stores: finishes tasks and copies them to host memory during the training of the next.
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
        """Number of pipelines."""
        return self.world // self.stages

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stage(self, direction: Direction) -> int:
        """Return the stage that this rank runs for tasks of a direction."""
        return stage_of(self.position, self.stages, direction)

    def rank_of(self, stage: int, direction: Direction) -> int:
        """Return the rank that runs a stage in this rank's pipeline."""
        return self.replica * self.stages + stage_of(stage, self.stages, direction)

    def read(self, stage: int) -> Mapping[str, Tensor] | None:
        """Read a stage's parameters into host memory, for `hold`; None if it is held."""
        if self.weights is None or self.weights.holds(stage):
            return None
        return self.weights.read(stage)

    def hold(self, stage: int, tensors: Mapping[str, Tensor] | None) -> None:
        """Place a stage on the device, instead of others if there is no room for both.

        Args:
            stage: number of the stage.
            tensors: result of `read` for it.
        """
        if self.weights is None or self.weights.holds(stage):
            return
        for other in range(self.stages):
            if self.weights.holds(other):
                self.weights.drop(other)
        self.weights.place(stage, self.weights.read(stage) if tensors is None else tensors)

    def agree(self, wish: int) -> int:
        """Return the highest number of all ranks; for example, whether any rank requests an end.

        Raises:
            StageLostError: a rank does not answer.
        """
        return int(max(wishes[0] for wishes in self.group.control.exchange([wish])))

    def close(self) -> None:
        """Leave the pipeline. Tasks that are being finished are dropped."""
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
) -> PipelineRank:
    """Load this rank's part of a model and connect; all ranks do so, with the same arguments.

    Args:
        store: a store of torch.distributed that all ranks reach, without keys of an earlier pipeline.
        rank: rank from 0 to ``world - 1``.
        world: number of ranks.
        stages: stages of each pipeline; `world` must be a multiple of it. Default: the number of ranks.
        directory: directory of the base model.
        device: device of this rank.
        host: address of this machine, whose network interface the ranks use.
        join_timeout_s: time to wait for ranks that still load.
        peer_timeout_s: time to wait for any later message; must exceed the longest step.
        layer_costs: cost of each layer, as returned by `measured_costs`; default: its parameters.
        device_memory_bytes: limit of the base's parameters on this rank's device. If the stages for both
            directions fit, both are kept there, and else one at a time. Default: half of the free memory on a
            CUDA device, since activations need room as well, and no limit on a CPU.
        traced: whether to keep a trace.

    Raises:
        PartitionError: the model cannot be cut so, or a stage does not fit the memory.
        BaseModelError: the model does not exist or cannot be cut.
        StageLostError: another rank does not connect in time.
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
    return PipelineRank(
        structure, weights.partition, weights, group, device, Trace(rank, device, enabled=traced)
    )


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
