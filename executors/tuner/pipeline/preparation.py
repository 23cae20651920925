"""Preparation of a job ahead of its training: all work that needs neither the device nor another rank."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from executors.lora.batch import TokenSequence
from executors.lora.dataset import Cursor, take
from executors.lora.resident import new_state
from executors.lora.task import LoraTask, TaskState
from executors.tuner.data import TokenizedFile
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.part import StageLayout
from executors.tuner.pipeline.partition import Direction
from executors.tuner.pipeline.pool import PipelineRank
from executors.tuner.pipeline.states import scatter_state
from executors.tuner.pipeline.structure import Structure


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
        weights: parameters of the base that this rank must load for it; None if they are held.
    """

    plan: PipelinePlan
    data: TokenizedFile
    structure: Structure
    layouts: tuple[StageLayout, ...]
    piece: TaskState
    first_batch: tuple[TokenSequence, ...]
    weights: Mapping[str, Tensor] | None


def prepare_task(
    pipeline: PipelineRank, plan: PipelinePlan, data: TokenizedFile, state: TaskState | None = None
) -> PreparedTask:
    """Prepare a job without the device and other ranks, so that any thread may do it ahead.

    Args:
        pipeline: pipeline that will train it.
        plan: plan of its training.
        data: its data, which every rank opens for itself.
        state: whole state, the same on every rank; None for a job without progress.

    Raises:
        ValueError: the job does not fit the base model, or the state or the data are of another job.
    """
    structure, layouts = _laid_out(pipeline, plan)
    if state is None:
        whole = structure.base.layout(plan.task)
        state = new_state(plan.task, whole, data.dataset.digest)
    sizes = {len(state.parameters), len(state.first_moment), len(state.second_moment)}
    if sizes != {sum(layout.size for layout in layouts)}:
        raise ValueError(f"{plan.task.job_id}: the state does not fit the base model and the task")
    piece = layouts[pipeline.stage(plan.direction)].cut(state)
    return _prepared(pipeline, plan, data, structure, layouts, piece)


def prepare_from_leader(
    pipeline: PipelineRank, plan: PipelinePlan, data: TokenizedFile, state: TaskState | None, channel: Channel
) -> PreparedTask:
    """Prepare a job like `prepare_task`, with the state on rank 0 only. All ranks do so at the same time.

    Args:
        channel: channel of the state.

    Raises:
        StageLostError: another rank is lost.
        ValueError: see `prepare_task`.
    """
    structure, layouts = _laid_out(pipeline, plan)
    piece = scatter_state(state, layouts, pipeline.rank, pipeline.world, plan.direction, channel)
    return _prepared(pipeline, plan, data, structure, layouts, piece)


def upcoming(state: TaskState, records: int) -> tuple[list[int], Cursor]:
    """Return the indices of the records of a job's next step, and the cursor behind them: those of the
    engine."""
    task = state.task
    count = min(task.batch_size, task.total_samples - state.samples_done)
    return take(records, task.seed, state.cursor, count)


def read_batch(state: TaskState, data: TokenizedFile) -> tuple[TokenSequence, ...]:
    """Return the sequences of a job's next step.

    Raises:
        ValueError: a record leaves nothing to predict.
    """
    indices, _ = upcoming(state, len(data))
    return tuple(data[index] for index in indices)


def _laid_out(pipeline: PipelineRank, plan: PipelinePlan) -> tuple[Structure, tuple[StageLayout, ...]]:
    task, structure = plan.task, pipeline.structure.frozen(plan.frozen_layers)
    if task.sequence_length > structure.base.longest_sequence_tokens:
        raise ValueError(
            f"{task.job_id}: sequences of {task.sequence_length} tokens, "
            f"but the base model takes {structure.base.longest_sequence_tokens}"
        )
    return structure, tuple(StageLayout(task, structure, layers) for layers in pipeline.partition)


def _prepared(
    pipeline: PipelineRank,
    plan: PipelinePlan,
    data: TokenizedFile,
    structure: Structure,
    layouts: tuple[StageLayout, ...],
    piece: TaskState,
) -> PreparedTask:
    if piece.task != plan.task:
        raise ValueError(f"{plan.task.job_id}: the state is of another task, or of other settings")
    if piece.dataset_digest != data.dataset.digest:
        raise ValueError(f"{plan.task.job_id}: {data.dataset.name} has changed since the task was suspended")
    if pipeline.device.type == "cuda":
        piece = replace(
            piece,
            parameters=piece.parameters.pin_memory(),
            first_moment=piece.first_moment.pin_memory(),
            second_moment=piece.second_moment.pin_memory(),
        )
    return PreparedTask(
        plan=plan,
        data=data,
        structure=structure,
        layouts=layouts,
        piece=piece,
        first_batch=read_batch(piece, data),
        weights=pipeline.read(pipeline.stage(plan.direction)),
    )
