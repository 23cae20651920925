"""A gang's training state as files, and the record of its result. The generation is the fencing token."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field, JsonValue, NonNegativeInt, PositiveInt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from executors.lora.dataset import DatasetError, JsonlDataset
from executors.lora.task_files import ADAPTER_TENSORS, TRAINING_STATE
from executors.node.checkpoints import Checkpoint
from executors.node.files import digest_of, write_folder
from executors.node.job_states import FinishedRecord, JobStates
from executors.node.losses import reportable
from schemas.base import Record
from schemas.fleet import Loss

MODEL_TENSORS = "model.safetensors"

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
    """Earlier measurements, reused after a resume."""


class FinishedJob(FinishedRecord):
    """See `FinishedRecord`. Unlike a checkpoint, it has no digest of the dataset: the result stays valid if
    the data changes."""

    workload: JsonValue
    samples_done: PositiveInt
    loss: Loss | None
    path: str
    """Path of the result, relative to the output root."""
    adapter_path: str | None
    """Path of the adapter, relative to the output root; None if all weights were trained."""
    adapter_digest: str | None
    """BLAKE2b-256 of the adapter's tensors."""

    @property
    def identity(self) -> tuple[object, str]:
        return self.workload, self.path


class JobCheckpoints(JobStates[TrainingState, FinishedJob]):
    """One job's checkpoints on the shared store. Rank 0 writes."""

    ABOUT_FILE = TRAINING_STATE
    ABOUT = TrainingState
    FINISHED = FinishedJob

    def __init__(self, root: Path, job_id: str, workload: JsonValue) -> None:
        """Open the checkpoints of a job.

        Args:
            workload: identifies the job's work; state of another is refused.
        """
        super().__init__(root)
        self._job_id = job_id
        self._workload = workload

    @property
    def is_finished(self) -> bool:
        """Return whether there is a record of a finished job, valid or damaged."""
        return self.store.is_concluded(self._job_id)

    def finished(self, path: str) -> FinishedJob | None:
        """Return the record of a finished job; None if the job continues. A job with a damaged record
        continues from the last valid checkpoint.

        Args:
            path: path of the job's result, which names its user.

        Raises:
            ValueError: it is of another workload, user or format.
        """
        final = self.store.conclusion(self._job_id)
        return None if final is None else self.record_of(final, self._workload, path)

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
        self.write(self._job_id, generation, position.samples_done, files, about)

    def read(self, checkpoint: Checkpoint, dataset: JsonlDataset | None) -> tuple[State, Position, JsonValue]:
        """Return the state, the position and the notes in a checkpoint.

        Raises:
            ValueError: it is of another job or format.
            DatasetError: the dataset has changed since.
        """
        about = self.about(checkpoint)
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
        self.conclude(self._job_id, generation, finished.samples_done, finished, {})
        return finished
