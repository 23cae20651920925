"""A gang's training state as files, and the record of its result. The generation is the fencing token."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from executors.lora.checkpoint import ADAPTER_TENSORS, TRAINING_STATE
from executors.lora.dataset import DatasetError, JsonlDataset
from executors.node.checkpoints import Checkpoint, CheckpointStore
from executors.node.files import digest_of, write_folder
from executors.node.losses import reportable
from schemas.base import Record
from schemas.fleet import Loss

MODEL_TENSORS = "model.safetensors"
FINISHED_JOB = "finished.json"

_POLL_S = 0.25

State: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""Whole tensors of a job, on the CPU: by the name of their file, and by their own name."""


@dataclass(frozen=True)
class Position:
    """Position of a training.

    Attributes:
        samples_done: samples trained; determines the next batch.
        steps: optimizer steps taken.
        loss: loss of the last step; None before the first.
    """

    samples_done: int = 0
    steps: int = 0
    loss: float | None = None


@dataclass(frozen=True)
class JobResult:
    """The files of a trained job.

    Attributes:
        folders: files by name, by their folder in the folder of the result; "" is that folder itself.
        adapter: folder of the adapter; None if all weights were trained.
    """

    folders: Mapping[str, Mapping[str, bytes]]
    adapter: str | None = None


class TrainingState(Record):
    """State of a training besides its tensors."""

    workload: JsonValue
    """The job's work. Its seed and batch size, with the samples done, determine the position in the data."""
    samples_done: NonNegativeInt
    steps: NonNegativeInt
    loss: Loss | None
    dataset_digest: str | None
    # Omitted without any, so that checkpoints written before it was added are read.
    notes: Annotated[JsonValue, Field(exclude_if=lambda notes: notes is None)] = None
    """Knowledge of the job's work that spares measurements."""


class FinishedJob(Record):
    """Record of a job whose result is published: enough to report it again.

    Unlike a checkpoint, it has no digest of the dataset: the result stays valid if the data changes.
    """

    workload: JsonValue
    """Another job may have the same id after a restart of its cell from nothing; this identifies the right
    one."""
    samples_done: PositiveInt
    loss: Loss | None
    path: str
    """Path of the result, relative to the output root."""
    adapter_path: str | None
    """Path of the adapter, relative to the output root; None if all weights were trained."""
    adapter_digest: str | None
    """BLAKE2b-256 of the adapter's tensors."""


class JobCheckpoints:
    """One job's checkpoints on the shared store. Rank 0 writes."""

    def __init__(self, root: Path, job_id: str, workload: JsonValue) -> None:
        """Open the checkpoints of a job.

        Args:
            workload: identifies the job's work; state of another is refused.
        """
        self._store = CheckpointStore(root)
        self._job_id = job_id
        self._workload = workload

    def await_newest(self, samples: int, wait_s: float) -> Checkpoint | None:
        """Return the newest valid checkpoint. See `await_checkpoint`."""
        return await_checkpoint(lambda: self._store.newest(self._job_id), samples, wait_s, _POLL_S)

    @property
    def is_finished(self) -> bool:
        """Return whether there is a record of a finished job, valid or damaged."""
        return self._store.is_concluded(self._job_id)

    def finished(self, path: str) -> FinishedJob | None:
        """Return the record of a finished job; None if the job continues. A job with a damaged record
        continues from the last valid checkpoint.

        Args:
            path: path of the job's result, which names its user.

        Raises:
            ValueError: it is of another workload, user or format.
        """
        final = self._store.conclusion(self._job_id)
        if final is None:
            return None
        if FINISHED_JOB not in final.files:
            raise ValueError(f"the record {final.path} of a finished job lacks {FINISHED_JOB}")
        finished = FinishedJob.model_validate_json(final.files[FINISHED_JOB])
        check_record(final, finished.workload == self._workload, finished.path, path)
        return finished

    def save(
        self,
        state: State,
        position: Position,
        dataset: JsonlDataset | None,
        generation: int,
        notes: JsonValue = None,
    ) -> None:
        """Write a checkpoint.

        Raises:
            StaleWriterError: a later generation wrote a checkpoint.
            OSError: the store failed; the previous checkpoint is kept.
        """
        about = TrainingState(
            workload=self._workload,
            samples_done=position.samples_done,
            steps=position.steps,
            loss=reportable(position.loss),
            dataset_digest=None if dataset is None else dataset.digest,
            notes=notes,
        )
        files = {name: save_tensors(dict(tensors)) for name, tensors in state.items()}
        files[TRAINING_STATE] = about.model_dump_json().encode()
        self._store.save(self._job_id, generation, position.samples_done, files)

    def read(self, checkpoint: Checkpoint, dataset: JsonlDataset | None) -> tuple[State, Position, JsonValue]:
        """Return the state, the position and the notes in a checkpoint.

        Raises:
            ValueError: it is of another job or format.
            DatasetError: the dataset has changed since.
        """
        if TRAINING_STATE not in checkpoint.files:
            raise ValueError(f"the checkpoint {checkpoint.path} lacks {TRAINING_STATE}")
        about = TrainingState.model_validate_json(checkpoint.files[TRAINING_STATE])
        if about.workload != self._workload:
            raise ValueError(f"the checkpoint {checkpoint.path} is of another workload")
        if dataset is not None and about.dataset_digest != dataset.digest:
            raise DatasetError(f"{dataset.name}: has changed since the job was checkpointed")
        tensors = {
            name: load_tensors(content)
            for name, content in checkpoint.files.items()
            if name != TRAINING_STATE
        }
        return tensors, Position(about.samples_done, about.steps, about.loss), about.notes

    def publish(
        self, result: JobResult, position: Position, root: Path, path: str, generation: int
    ) -> FinishedJob:
        """Write a result below the output root, and replace the checkpoints by its record.

        Raises:
            StaleWriterError: a later generation wrote a checkpoint.
            OSError: a disk failed; the checkpoints are kept.
        """
        for folder, files in result.folders.items():
            write_folder(root / path / folder, files)
        adapter_path = adapter_digest = None
        if result.adapter is not None:
            adapter_path = f"{path}/{result.adapter}".rstrip("/")
            adapter_digest = digest_of(result.folders[result.adapter][ADAPTER_TENSORS])
        finished = FinishedJob(
            workload=self._workload,
            samples_done=position.samples_done,
            loss=reportable(position.loss),
            path=path,
            adapter_path=adapter_path,
            adapter_digest=adapter_digest,
        )
        record = {FINISHED_JOB: finished.model_dump_json().encode()}
        self._store.conclude(self._job_id, generation, finished.samples_done, record)
        return finished


def await_checkpoint(
    find: Callable[[], Checkpoint | None],
    samples: int,
    wait_s: float,
    poll_s: float,
    is_over: Callable[[], bool] = lambda: False,
) -> Checkpoint | None:
    """Return the newest checkpoint. If the cell has a report of one, wait for it: its writer may still run.

    Args:
        find: returns the present newest checkpoint.
        samples: samples of the reported checkpoint; 0 without a report.
        wait_s: longest wait, after which the newest checkpoint is returned.
        is_over: returns whether no further checkpoint is expected.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        newest = find()
        samples_done = 0 if newest is None else newest.samples_done
        if samples_done >= samples or time.monotonic() >= deadline_s or is_over():
            return newest
        time.sleep(poll_s)


def check_record(final: Checkpoint, is_of_workload: bool, path: str, expected_path: str) -> None:
    """Check that the record of a finished job is of this job.

    Raises:
        ValueError: it is of another workload or user.
    """
    if not is_of_workload:
        raise ValueError(f"the record {final.path} of a finished job is of another workload")
    if path != expected_path:
        raise ValueError(f"the record {final.path} of a finished job is of {path}, not {expected_path}")
