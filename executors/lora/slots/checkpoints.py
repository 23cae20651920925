"""Finished adapters, and the states of jobs between their runs: on the shared store, and in memory."""

import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from executors.lora.lora_task import BYTES_PER_PARAMETER, LoraTask, TaskState
from executors.lora.shared_base import SharedBase
from executors.lora.task_files import decode_state, encode_state, publish_adapter
from executors.node.checkpoints import Checkpoint
from executors.node.job_states import FinishedRecord, JobStates
from executors.node.places import result_path
from schemas.base import Record, Slot
from schemas.fleet import Loss

_BYTES_WITHOUT_TENSORS = 16 * 1024


@dataclass(frozen=True)
class PublishedAdapter:
    """An adapter below the output root."""

    path: str
    """Path relative to the output root."""
    digest: str
    """BLAKE2b-256 of its tensors' file, in hexadecimal."""


class AdapterOutput:
    """Writes a cell's adapters of one base model below one folder."""

    def __init__(self, root: Path, cell: str, base: SharedBase) -> None:
        """Write to `<root>/<cell>/<user>/<job_id>/`: cells may have jobs of the same id, and users may reuse
        ids over the years.
        """
        self._root = root
        self._cell = cell
        self._base = base

    def publish(self, state: TaskState, user: str) -> PublishedAdapter:
        """Write the adapter of a user's finished task; a repeated call has no effect.

        Raises:
            OSError: the disk failed.
        """
        path = result_path(self._cell, user, state.task.job_id)
        return PublishedAdapter(path, publish_adapter(encode_state(state, self._base), self._root / path))

    def withdraw(self, adapter: PublishedAdapter) -> None:
        """Delete an adapter that was published after its job was over for its user."""
        shutil.rmtree(self._root / adapter.path, ignore_errors=True)


class RunProgress(Record):
    """A checkpoint's data besides the task's state, needed to resume the run and report it."""

    base_samples: NonNegativeInt
    """Samples done at the start of the checkpoint's slot."""
    loss: Loss | None
    """Loss of the last step; None before the first."""


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint in memory. The slot is its fencing token."""

    slot: Slot
    state: TaskState
    progress: RunProgress


class FinishedRun(FinishedRecord):
    """See `FinishedRecord`."""

    task: LoraTask
    slot: Slot
    """Slot in which it was finished: the fencing token."""
    samples_done: PositiveInt
    loss: Loss
    adapter: PublishedAdapter

    @property
    def identity(self) -> tuple[object, str]:
        return self.task, self.adapter.path


class RunCheckpoints(JobStates[RunProgress, FinishedRun]):
    """Saves and restores the runs of one base model."""

    ABOUT_FILE = "run.json"
    ABOUT = RunProgress
    FINISHED = FinishedRun

    def __init__(self, root: Path, base: SharedBase, parked_runs: int) -> None:
        """Keep checkpoints below `root`, and the last `parked_runs` of the parked runs in memory."""
        super().__init__(root)
        self._base = base
        self._limit = parked_runs
        self._parked: OrderedDict[str, SavedRun] = OrderedDict()

    def bytes_of(self, task: LoraTask) -> int:
        """Return the approximate size of a task's checkpoint on the store.

        Raises:
            ValueError: a target module matches no layer.
        """
        return BYTES_PER_PARAMETER * self._base.layout(task).size + _BYTES_WITHOUT_TENSORS

    def restore(self, checkpoint: Checkpoint) -> SavedRun:
        """Return the content of `checkpoint`: from memory if it was parked here and is still the newest.

        Raises:
            ValueError: the checkpoint is of another base model or format.
        """
        job_id = checkpoint.path.parent.name
        parked = self._parked.pop(job_id, None)
        if parked is not None and (parked.slot, parked.state.samples_done) == (
            checkpoint.token,
            checkpoint.samples_done,
        ):
            return parked
        about = self.about(checkpoint)
        return SavedRun(checkpoint.token, decode_state(checkpoint.files, self._base), about)

    def save(self, run: SavedRun) -> None:
        """Write a checkpoint.

        Raises:
            StaleWriterError: a later slot wrote a checkpoint.
            OSError: the store failed; the previous checkpoint is kept.
        """
        state = run.state
        self.write(
            state.task.job_id, run.slot, state.samples_done, encode_state(state, self._base), run.progress
        )

    def finish(self, run: FinishedRun) -> None:
        """Replace a job's checkpoints by its record; a repeated call removes the remains of a crash.

        Raises:
            StaleWriterError: a later slot wrote a checkpoint.
            OSError: the store failed; the checkpoints are kept.
        """
        self.forget(run.task.job_id)
        self.conclude(run.task.job_id, run.slot, run.samples_done, run, {})

    def remove(self, job_id: str) -> None:
        """Remove the files of a job that is over for its user."""
        self.forget(job_id)
        self.store.remove(job_id)

    def park(self, run: SavedRun) -> None:
        """Keep a saved run in memory for its next slot."""
        job_id = run.state.task.job_id
        self._parked[job_id] = run
        self._parked.move_to_end(job_id)
        while len(self._parked) > self._limit:
            self._parked.popitem(last=False)

    def forget(self, job_id: str) -> None:
        """Remove a job from memory; its checkpoints stay."""
        self._parked.pop(job_id, None)
