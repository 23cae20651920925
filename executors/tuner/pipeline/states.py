"""State of a job, gathered from the stages and scattered to them.

It is the engine's `TaskState`, so a checkpoint of a pipeline resumes in the engine and vice versa. A stage's
piece of it is a `TaskState` too, with the stage's pieces as its vectors.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from executors.lora.checkpoint import TaskTrainingState
from executors.lora.dataset import Cursor
from executors.lora.task import TaskState
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.part import StageLayout
from executors.tuner.pipeline.partition import Direction, stage_of

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
        channel: for host memory.

    Returns:
        the state on rank 0; None on others.

    Raises:
        StageLostError: another rank is lost.
    """
    if rank != LEADER:
        # Other pipelines have the same vectors.
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
        channel: for host memory.

    Returns:
        this rank's piece.

    Raises:
        StageLostError: another rank is lost.
        ValueError: rank 0 has no state, or it does not fit the base model and the task.
    """
    stages = len(layouts)
    if rank == LEADER:
        if state is None or len(state.parameters) != sum(layout.size for layout in layouts):
            raise ValueError(f"{layouts[0].task.job_id}: rank {LEADER} has no state that fits the task")
        described = _describe(state)
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
    return _piece(bytes(content.tolist()), vectors_here)


def _describe(state: TaskState) -> bytes:
    training = TaskTrainingState(
        task=state.task,
        optimizer_steps=state.optimizer_steps,
        micro_batches=state.micro_batches,
        samples_done=state.samples_done,
        epoch=state.cursor.epoch,
        position=state.cursor.position,
        dataset_digest=state.dataset_digest,
    )
    return training.model_dump_json().encode()


def _piece(described: bytes, vectors: Tensor) -> TaskState:
    training = TaskTrainingState.model_validate_json(described)
    parameters, first_moment, second_moment = vectors
    return TaskState(
        task=training.task,
        parameters=parameters,
        first_moment=first_moment,
        second_moment=second_moment,
        optimizer_steps=training.optimizer_steps,
        micro_batches=training.micro_batches,
        samples_done=training.samples_done,
        cursor=Cursor(training.epoch, training.position),
        dataset_digest=training.dataset_digest,
    )
