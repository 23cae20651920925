"""State of a job between two of its tasks: it is read and written, and published once the job is done. A
shared adapter is divided into the parts of its jobs.

The flat vector of a shared run has the low-rank matrices, then the head of each job in the order of the
command. For a language model, heads are empty and each job uses the whole vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from executors.lora.adapter import AdapterLayout
from executors.lora.lora_task import AdapterState, LoraTask, TaskState
from executors.lora.shared_base import SharedBase
from executors.lora.task_files import ADAPTER_TENSORS, decode_state, encode_state, publish_adapter
from executors.node.checkpoints import Checkpoint, StaleWriterError
from executors.node.files import digest_of
from executors.node.places import result_path
from executors.tuner.files import OTHER_HEAD, FinishedTuning, JobFiles, JobProgress
from schemas.lora import LoraHyperparameters
from schemas.merging.commands import JobOrder
from schemas.merging.workload import TuningWorkload

NO_HEAD = torch.empty(3, 0)
"""Head of a job in an unshared run, or of a base model with a frozen head."""

_POLL_S = 0.1
_HEAD = "parameters_and_moments"

_Change = Callable[[Tensor], Tensor]


def lora_task(job_id: str, workload: TuningWorkload) -> LoraTask:
    """Return the job as a task of the LoRA engine."""
    fields = workload.hyperparameters.model_dump(include=set(LoraHyperparameters.model_fields))
    return LoraTask(
        job_id=job_id,
        dataset=workload.dataset.path,
        columns=workload.dataset.columns,
        total_samples=workload.total_samples,
        **fields,
    )


@dataclass(frozen=True)
class SavedJob:
    """State that a job resumes from."""

    state: TaskState
    progress: JobProgress
    other_head: Tensor
    """The head of the other job of a shared run, float32 `[3, head size]`; empty otherwise."""


class TuningCheckpoints:
    """Reads and writes the states of jobs on one base model."""

    def __init__(self, files: JobFiles, base: SharedBase, cell: str, output_root: Path) -> None:
        self._files = files
        self._base = base
        self._cell = cell
        self._output_root = output_root

    def base_of(self, workload: TuningWorkload) -> SharedBase:
        """Return the base model with the layers that a job adapts.

        Raises:
            ValueError: the job freezes all layers.
        """
        return self._base.frozen(workload.hyperparameters.frozen_layers)

    def find(self, order: JobOrder, generation: int, wait_s: float) -> SavedJob | FinishedTuning | None:
        """Return the state that a job resumes from in this generation; None if it starts without state.

        If the cell has a report of a checkpoint, wait for it: its writer may still run. Remove the state of a
        job that starts without state, unless this generation wrote it.

        Raises:
            StaleWriterError: a later generation wrote a checkpoint.
            ValueError: the checkpoint is of another job, base model or format.
        """
        job_id, files = order.job_id, self._files
        resume_samples = order.resume_iterations * order.workload.hyperparameters.batch_size
        newest = files.await_newest(job_id, resume_samples, wait_s, order.oldest_generation)
        if newest is not None and newest.token > generation:
            raise StaleWriterError(f"{job_id}: generation {generation} was replaced by {newest.token}")
        before = files.newest(job_id) if order.resume_iterations == 0 else None
        if before is not None and before.token < generation:
            files.store.remove(job_id)
            return None
        if newest is None:
            return None
        path = result_path(self._cell, order.user, job_id)
        return files.record_of(newest, order.workload, path) or self._saved(newest, order)

    def adapter_of(
        self, job_id: str, workload: TuningWorkload, digest: str | None = None
    ) -> TaskState | None:
        """Return the adapter of a finished job, to start another job from; None if it was removed.

        Args:
            workload: workload of the job to start, which adapts the same layers.
            digest: digest of the adapter; None for any.
        """
        final = self._files.store.conclusion(job_id)
        if final is None or ADAPTER_TENSORS not in final.files:
            return None
        if digest is not None and digest_of(final.files[ADAPTER_TENSORS]) != digest:
            return None  # the id has become that of another job
        return decode_state(final.files, self.base_of(workload))

    def save(self, saved: SavedJob, generation: int) -> None:
        """Write a checkpoint.

        Raises:
            StaleWriterError: a later generation wrote a checkpoint, or the job is over.
            OSError: the store failed; the previous checkpoint is kept.
        """
        files = encode_state(saved.state, self.base_of(saved.progress.workload))
        if saved.other_head.numel():
            files[OTHER_HEAD] = save_tensors({_HEAD: saved.other_head})
        state = saved.state
        self._files.write(state.task.job_id, generation, state.samples_done, files, saved.progress)

    def finish(self, saved: SavedJob, user: str, loss: float | None, generation: int) -> FinishedTuning:
        """Publish a job's adapter, and keep only what its report needs of its checkpoints.

        Raises:
            StaleWriterError: a later generation wrote a checkpoint.
            OSError: a disk failed; the checkpoints are kept.
        """
        job_id = saved.state.task.job_id
        encoded = encode_state(saved.state, self.base_of(saved.progress.workload))
        path = result_path(self._cell, user, job_id)
        finished = FinishedTuning(
            workload=saved.progress.workload,
            position=saved.progress.position.model_copy(update={"is_over": True}),
            loss=loss,
            path=path,
            digest=publish_adapter(encoded, self._output_root / path),
        )
        # The adapter is kept, since its receiver may have to start from it again.
        self._files.conclude(job_id, generation, saved.state.samples_done, finished, encoded)
        return finished

    def _saved(self, checkpoint: Checkpoint, order: JobOrder) -> SavedJob:
        progress = self._files.about(checkpoint)
        if progress.workload != order.workload:
            raise ValueError(f"the checkpoint {checkpoint.path} is of another workload")
        state = decode_state(checkpoint.files, self.base_of(order.workload))
        if OTHER_HEAD not in checkpoint.files:
            return SavedJob(state, progress, NO_HEAD)
        return SavedJob(state, progress, load_tensors(checkpoint.files[OTHER_HEAD])[_HEAD])


def own_state(layout: AdapterLayout, state: AdapterState, head: int) -> AdapterState:
    """Return the state of one job.

    Args:
        layout: layout of one job alone.
        state: state of the shared adapter.
        head: number of the job's head.
    """
    start = layout.shared_size + head * layout.head_size

    def cut(flat: Tensor) -> Tensor:
        return torch.cat([flat[: layout.shared_size], flat[start : start + layout.head_size]])

    return _changed(state, cut, cut, cut)


def head_of(layout: AdapterLayout, state: AdapterState, head: int) -> Tensor:
    """Return one head of an adapter: its parameters and both moments, float32 ``[3, head size]``."""
    start = layout.shared_size + head * layout.head_size
    vectors = state.parameters, state.first_moment, state.second_moment
    return torch.stack([flat[start : start + layout.head_size] for flat in vectors])


def shared_state(layout: AdapterLayout, own: AdapterState, head: int, other: Tensor) -> AdapterState:
    """Return the state of the adapter of a shared run, from one job's own and the other's head: the inverse
    of `own_state` and `head_of`.

    Args:
        layout: layout of one job alone.
        own: state of one job.
        head: place of the job in the command.
        other: head of the other job, float32 ``[3, head size]``.
    """

    def with_other(row: int) -> _Change:
        def joined(flat: Tensor) -> Tensor:
            shared, mine = flat[: layout.shared_size], flat[layout.shared_size :]
            heads = [mine, other[row]] if head == 0 else [other[row], mine]
            return torch.cat([shared, *heads])

        return joined

    return _changed(own, with_other(0), with_other(1), with_other(2))


def fresh_from(donor: AdapterState, layout: AdapterLayout) -> AdapterState:
    """Return the first state of the receiver of a temporal merge: the donor's low-rank matrices, the head of
    a new job, and a new optimizer.

    Args:
        layout: layout of either job alone.
    """
    return AdapterState(
        parameters=layout.reset_heads(donor.parameters),
        first_moment=torch.zeros_like(donor.first_moment),
        second_moment=torch.zeros_like(donor.second_moment),
        optimizer_steps=0,
    )


def _changed(state: AdapterState, parameters: _Change, first: _Change, second: _Change) -> AdapterState:
    return AdapterState(
        parameters=parameters(state.parameters),
        first_moment=first(state.first_moment),
        second_moment=second(state.second_moment),
        optimizer_steps=state.optimizer_steps,
    )
