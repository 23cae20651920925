"""Finished adapters, and the states of jobs between their runs: on the shared store, and in memory."""

import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from executors.lora.base_model import SharedBase
from executors.lora.checkpoint import ADAPTER_CONFIG, ADAPTER_TENSORS, decode_state, encode_state
from executors.lora.task import BYTES_PER_PARAMETER, LoraTask, TaskState
from executors.node.checkpoints import Checkpoint, CheckpointStore
from executors.node.files import digest_of, write_folder
from executors.node.places import result_path
from schemas.base import Record, Slot
from schemas.fleet import Loss

RUN_PROGRESS = "run.json"

FINISHED_RUN = "finished.json"


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
        encoded = encode_state(state, self._base)
        files = {name: encoded[name] for name in (ADAPTER_CONFIG, ADAPTER_TENSORS)}
        path = result_path(self._cell, user, state.task.job_id)
        folder = self._root / path
        if any(_content(folder / name) != content for name, content in files.items()):
            write_folder(folder, files)
        return PublishedAdapter(path, digest_of(files[ADAPTER_TENSORS]))

    def withdraw(self, adapter: PublishedAdapter) -> None:
        """Delete an adapter that was published after its job was over for its user."""
        shutil.rmtree(self._root / adapter.path, ignore_errors=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


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


class FinishedRun(Record):
    """Record of a job whose adapter is written: enough to report it again."""

    task: LoraTask
    slot: Slot
    """Slot in which it was finished: the fencing token."""
    samples_done: PositiveInt
    loss: Loss
    adapter: PublishedAdapter


class RunCheckpoints:
    """Saves and restores the runs of one base model."""

    def __init__(self, root: Path, base: SharedBase, parked_runs: int) -> None:
        """Keep checkpoints below `root`, and the last `parked_runs` of the parked runs in memory."""
        self._store = CheckpointStore(root)
        self._base = base
        self._limit = parked_runs
        self._parked: OrderedDict[str, SavedRun] = OrderedDict()

    def bytes_of(self, task: LoraTask) -> int:
        """Return the approximate size of a task's checkpoint on the store.

        Raises:
            ValueError: a target module matches no layer.
        """
        return BYTES_PER_PARAMETER * self._base.layout(task).size + _BYTES_WITHOUT_TENSORS

    def newest(self, job_id: str) -> Checkpoint | None:
        """Return the newest valid checkpoint on the store, of any writer; for a job's end, see `finished`."""
        return self._store.newest(job_id)

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
        if RUN_PROGRESS not in checkpoint.files:
            raise ValueError(f"the checkpoint lacks {RUN_PROGRESS}")
        return SavedRun(
            checkpoint.token,
            decode_state(checkpoint.files, self._base),
            RunProgress.model_validate_json(checkpoint.files[RUN_PROGRESS]),
        )

    def save(self, run: SavedRun) -> None:
        """Write a checkpoint.

        Raises:
            StaleWriterError: a later slot wrote a checkpoint.
            OSError: the store failed; the previous checkpoint is kept.
        """
        files = encode_state(run.state, self._base)
        files[RUN_PROGRESS] = run.progress.model_dump_json().encode()
        self._store.save(run.state.task.job_id, run.slot, run.state.samples_done, files)

    def finish(self, run: FinishedRun) -> None:
        """Replace a job's checkpoints by its record; a repeated call removes the remains of a crash.

        Raises:
            StaleWriterError: a later slot wrote a checkpoint.
            OSError: the store failed; the checkpoints are kept.
        """
        self.forget(run.task.job_id)
        content = run.model_dump_json().encode()
        self._store.conclude(run.task.job_id, run.slot, run.samples_done, {FINISHED_RUN: content})

    @staticmethod
    def finished(checkpoint: Checkpoint) -> FinishedRun | None:
        """Return the record of a finished job; None if the job continues.

        Raises:
            ValueError: the record is of another format.
        """
        content = checkpoint.files.get(FINISHED_RUN)
        return None if content is None else FinishedRun.model_validate_json(content)

    def remove(self, job_id: str) -> None:
        """Remove the files of a job that is over for its user."""
        self.forget(job_id)
        self._store.remove(job_id)

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
