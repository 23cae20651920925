"""Preparation of a job ahead of its training, and its state, gathered from the stages and scattered to them.

The whole state is the engine's `TaskState`, so a checkpoint of a pipeline resumes in the engine and vice
versa. A stage's piece of it is a `TaskState` too, with the stage's pieces as its vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from executors.lora.batch import TokenSequence
from executors.lora.dataset import Cursor, next_indices
from executors.lora.lora_task import LoraTask, TaskState
from executors.lora.task_files import TaskTrainingState
from executors.tuner.data import TokenizedFile
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.partition import Direction, stage_of
from executors.tuner.pipeline.pipeline_rank import PipelineRank
from executors.tuner.pipeline.stage_part import StageLayout
from executors.tuner.pipeline.structure import Structure

LEADER = 0
"""The rank that whole states are gathered to and scattered from."""

_HOST = torch.device("cpu")


def gather_state(
    piece: TaskState,
    vectors: Tensor,
    layouts: Sequence[StageLayout],
    rank: int,
    direction: Direction,
    channel: Channel,
) -> TaskState | None:
    """Combine a job's state; all ranks must do so at the same time.

    Args:
        piece: this rank's piece; its vectors are not used.
        vectors: parameters and both moments of this rank's stage, float32 ``[3, size]`` in host memory.
        layouts: layouts of all stages.
        rank: rank of this process.
        direction: direction of the job.
        channel: channel for tensors in host memory.

    Returns:
        the state on rank 0; None on others.
    """
    if rank != LEADER:
        # Only ranks of the first pipeline send; the others hold copies.
        if vectors.shape[1] and rank < len(layouts):
            channel.send(vectors, LEADER)
            channel.flush()
        return None
    pieces = []
    for stage, layout in enumerate(layouts):
        source = stage_of(stage, len(layouts), direction)
        if source == LEADER:
            pieces.append(vectors)
        elif layout.size:
            pieces.append(channel.receive((3, layout.size), torch.float32, _HOST, source))
    parameters, first_moment, second_moment = torch.cat(pieces, dim=1)
    return replace(piece, parameters=parameters, first_moment=first_moment, second_moment=second_moment)


def scatter_state(
    state: TaskState | None,
    layouts: Sequence[StageLayout],
    rank: int,
    world: int,
    direction: Direction,
    channel: Channel,
) -> TaskState:
    """Send each rank its stage's piece of rank 0's state; all ranks must do so at the same time.

    Args:
        state: whole state on rank 0; None on others.
        layouts: layouts of all stages.
        rank: rank of this process.
        world: number of ranks of all pipelines.
        direction: direction of the job.
        channel: channel for tensors in host memory.

    Returns:
        this rank's piece.

    Raises:
        ValueError: rank 0 has no state, or it does not fit the base model and the task.
    """
    stages = len(layouts)
    if rank == LEADER:
        if state is None or len(state.parameters) != sum(layout.size for layout in layouts):
            raise ValueError(f"{layouts[0].task.job_id}: rank {LEADER} has no state that fits the task")
        described = TaskTrainingState.of(state).model_dump_json().encode()
        content = torch.frombuffer(bytearray(described), dtype=torch.uint8)
        for other in range(1, world):
            piece = layouts[stage_of(other % stages, stages, direction)].cut(state)
            channel.send(torch.tensor([len(described)]), other)
            channel.send(content, other)
            if len(piece.parameters):
                vectors = (piece.parameters, piece.first_moment, piece.second_moment)
                channel.send(torch.stack(vectors), other)
        channel.flush()
        return layouts[stage_of(rank, stages, direction)].cut(state)
    length = int(channel.receive((1,), torch.int64, _HOST, LEADER))
    content = channel.receive((length,), torch.uint8, _HOST, LEADER)
    size = layouts[stage_of(rank % stages, stages, direction)].size
    vectors_here = torch.empty(3, 0)
    if size:
        vectors_here = channel.receive((3, size), torch.float32, _HOST, LEADER)
    return TaskTrainingState.model_validate_json(bytes(content.tolist())).with_vectors(*vectors_here)


@dataclass(frozen=True)
class PipelinePlan:
    """Training of a job over a pipeline; the same on all ranks.

    Attributes:
        task: the job; its batch size is that of a step.
        micro_batches: parts of a pipeline's share of a step's batch; fewer if it has fewer sequences. The
            pipeline idles for (stages - 1) / (micro_batches + stages - 1) of a step.
        direction: order of the stages over the ranks.
        frozen_layers: number of first layers without an adapter.
        checkpoints_activations: whether activations within layers are computed again in the backward pass.
    """

    task: LoraTask
    micro_batches: int
    direction: Direction = "forward"
    frozen_layers: int = 0
    checkpoints_activations: bool = False

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"{self.task.job_id}: {self.micro_batches} micro-batches; at least 1 is needed")


@dataclass(frozen=True)
class PreparedTask:
    """A job in this rank's host memory, ready to be brought to the device.

    Attributes:
        plan: plan of its training.
        data: its data, open; closed with the task.
        structure: structure of the model, with the layers that may have an adapter.
        layouts: layouts of all stages.
        piece: this rank's piece of its state, pinned if the device is a GPU.
        first_batch: sequences of its next step.
    """

    plan: PipelinePlan
    data: TokenizedFile
    structure: Structure
    layouts: tuple[StageLayout, ...]
    piece: TaskState
    first_batch: tuple[TokenSequence, ...]


def prepare_task(
    pipeline: PipelineRank, plan: PipelinePlan, data: TokenizedFile, state: TaskState | None, channel: Channel
) -> PreparedTask:
    """Prepare a job, without the device, so that any thread may do it ahead. All ranks do so at the same
    time.

    Args:
        pipeline: pipeline that will train it.
        plan: plan of its training.
        data: its data, which every rank opens for itself.
        state: whole state on rank 0; None elsewhere.
        channel: channel of the state.

    Raises:
        ValueError: the job does not fit the base model, or the state or the data are of another job.
    """
    task, structure = plan.task, pipeline.structure.frozen(plan.frozen_layers)
    if task.sequence_length > structure.base.longest_sequence_tokens:
        raise ValueError(
            f"{task.job_id}: sequences of {task.sequence_length} tokens, "
            f"but the base model takes {structure.base.longest_sequence_tokens}"
        )
    layouts = tuple(StageLayout(task, structure, layers) for layers in pipeline.partition)
    piece = scatter_state(state, layouts, pipeline.rank, pipeline.world, plan.direction, channel)
    if piece.task != task:
        raise ValueError(f"{task.job_id}: the state is of another task, or of other settings")
    if piece.dataset_digest != data.dataset.digest:
        raise ValueError(f"{task.job_id}: {data.dataset.name} has changed since the task was suspended")
    if pipeline.device.type == "cuda":
        piece = piece.pinned()
    return PreparedTask(plan, data, structure, layouts, piece, read_batch(piece, data))


def upcoming(state: TaskState, records: int) -> tuple[list[int], Cursor]:
    """Return the indices of the records of a job's next step and the cursor after them, in the engine's
    order."""
    task = state.task
    count = min(task.batch_size, task.total_samples - state.samples_done)
    return next_indices(records, task.seed, state.cursor, count)


def read_batch(state: TaskState, data: TokenizedFile) -> tuple[TokenSequence, ...]:
    """Return the sequences of a job's next step.

    Raises:
        ValueError: a record leaves nothing to predict.
    """
    indices, _ = upcoming(state, len(data))
    return tuple(data[index] for index in indices)
