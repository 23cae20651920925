"""A job's training state as files, and its published result."""

import json
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from executors.elastic.training import Trainer
from executors.lora.checkpoint import ADAPTER_TENSORS
from executors.lora.dataset import DatasetError
from executors.node.checkpoints import Checkpoint, CheckpointStore
from executors.node.files import write_folder
from schemas.elastic.workload import ElasticWorkload
from schemas.fleet import Loss

MODEL_TENSORS = "model.safetensors"
OPTIMIZER_TENSORS = "optimizer.safetensors"
TRAINING_STATE = "training_state.json"
FINISHED_JOB = "finished.json"

_MAX_LOSS = 1e9
_POLL_S = 0.25


class TrainingState(BaseModel):
    """State of a training besides its tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: ElasticWorkload
    """Has the seed and the batch size, which with the samples decide the place in the data."""
    samples_done: NonNegativeInt
    loss: Loss | None
    dataset_digest: str


class FinishedJob(BaseModel):
    """All that is kept of a job whose result is published: what it takes to report it, once or again.

    Unlike a checkpoint it does not have the digest of the dataset: the result stands, whatever becomes of the
    data afterwards.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: ElasticWorkload
    """Another job may have the same id, after its cell has begun anew; this is no result of that one."""
    samples_done: PositiveInt
    loss: Loss | None
    path: str
    """Path of the result, relative to the output root."""
    adapter_digest: str | None
    """BLAKE2b-256 of the adapter's tensors; None where all weights were trained."""


class JobCheckpoints:
    """One job's checkpoints on the shared store. The generation is the fencing token."""

    def __init__(self, root: Path, job_id: str, workload: ElasticWorkload) -> None:
        self._store = CheckpointStore(root)
        self._job_id = job_id
        self._workload = workload

    def newest(self) -> Checkpoint | None:
        """Return the newest that verifies."""
        return self._store.newest(self._job_id)

    def await_newest(self, samples: int, wait_s: float) -> Checkpoint | None:
        """Return the newest that verifies. One that the cell knows of is waited for: its writer may still be
        at work.

        Args:
            samples: of the checkpoint that the cell knows of; 0 if there is none.
            wait_s: limit of the wait, after which whatever is newest is returned.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            newest = self.newest()
            samples_done = 0 if newest is None else newest.samples_done
            if samples_done >= samples or time.monotonic() >= deadline_s:
                return newest
            time.sleep(_POLL_S)

    @property
    def is_finished(self) -> bool:
        """Whether `finished` has something to say: a record that is damaged does not end the job."""
        return self._store.is_concluded(self._job_id)

    def finished(self, path: str) -> FinishedJob | None:
        """Return the record of a finished job; None where the job goes on, from its last sound checkpoint if
        what is kept does not verify.

        Args:
            path: where the job's result belongs, which names its user.

        Raises:
            ValueError: it is of another workload, user or format.
        """
        final = self._store.conclusion(self._job_id)
        if final is None:
            return None
        if FINISHED_JOB not in final.files:
            raise ValueError(f"the record {final.path} of a finished job lacks {FINISHED_JOB}")
        finished = FinishedJob.model_validate_json(final.files[FINISHED_JOB])
        if finished.workload != self._workload:
            raise ValueError(f"the record {final.path} of a finished job is of another workload")
        if finished.path != path:
            raise ValueError(f"the record {final.path} of a finished job is of {finished.path}, not {path}")
        return finished

    def save(self, trainer: Trainer, generation: int) -> int:
        """Write a checkpoint, and return how many bytes its tensors have.

        Raises:
            StaleWriterError: a later generation has written already.
            OSError: the store failed; the checkpoint before is still there.
        """
        tensors = {name: tensor.cpu().contiguous() for name, tensor in trainer.tensors().items()}
        names = dict(trainer.model.parameters())
        training = TrainingState(
            workload=self._workload,
            samples_done=trainer.samples_done,
            loss=reportable(trainer.loss),
            dataset_digest=trainer.dataset.digest,
        )
        files = {
            MODEL_TENSORS: save_tensors({name: tensors[name] for name in names}),
            OPTIMIZER_TENSORS: save_tensors(
                {name: tensor for name, tensor in tensors.items() if name not in names}
            ),
            TRAINING_STATE: json.dumps(training.model_dump(mode="json"), sort_keys=True).encode(),
        }
        self._store.save(self._job_id, generation, trainer.samples_done, files)
        return sum(len(content) for content in files.values())

    def restore(self, checkpoint: Checkpoint, trainer: Trainer) -> None:
        """Have a trainer go on from a checkpoint.

        Raises:
            ValueError: it is of another job, model or format.
            DatasetError: the dataset has changed since.
        """
        missing = {MODEL_TENSORS, OPTIMIZER_TENSORS, TRAINING_STATE} - checkpoint.files.keys()
        if missing:
            raise ValueError(f"the checkpoint {checkpoint.path} lacks {', '.join(sorted(missing))}")
        training = TrainingState.model_validate_json(checkpoint.files[TRAINING_STATE])
        if training.workload != self._workload:
            raise ValueError(f"the checkpoint {checkpoint.path} is of another workload")
        if training.dataset_digest != trainer.dataset.digest:
            raise DatasetError(f"{trainer.dataset.name}: has changed since the job was checkpointed")
        tensors = {
            **load_tensors(checkpoint.files[MODEL_TENSORS]),
            **load_tensors(checkpoint.files[OPTIMIZER_TENSORS]),
        }
        trainer.load(tensors, training.samples_done, training.loss)

    def finish(self, finished: FinishedJob, generation: int) -> None:
        """Keep so much of the job and no checkpoint.

        Raises:
            StaleWriterError: a later generation has written already.
            OSError: the store failed; the checkpoints are still there.
        """
        content = finished.model_dump_json().encode()
        self._store.conclude(self._job_id, generation, finished.samples_done, {FINISHED_JOB: content})


def reportable(loss: float | None) -> float | None:
    """A loss as a report can carry it."""
    return None if loss is None else min(loss, _MAX_LOSS)


def publish(trainer: Trainer, root: Path, path: str) -> FinishedJob:
    """Write the trained model, or its adapter, to `path` below the output root.

    Raises:
        OSError: the disk failed.
    """
    files = trainer.model.files()
    write_folder(root / path, files)
    return FinishedJob(
        workload=trainer.workload,
        samples_done=trainer.samples_done,
        loss=reportable(trainer.loss),
        path=path,
        adapter_digest=_digest(files),
    )


def _digest(files: Mapping[str, bytes]) -> str | None:
    content = files.get(ADAPTER_TENSORS)
    return None if content is None else blake2b(content, digest_size=32).hexdigest()
