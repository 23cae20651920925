"""A job's training state as files, whole, so that any number of ranks can go on from it; and its result."""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from executors.elastic.checkpoint import (
    FINISHED_JOB,
    MODEL_TENSORS,
    OPTIMIZER_TENSORS,
    TRAINING_STATE,
    reportable,
)
from executors.lora.checkpoint import ADAPTER_TENSORS
from executors.lora.dataset import DatasetError, JsonlDataset
from executors.moe.training.model import MoeModel
from executors.moe.training.trainer import FIRST_MOMENT, ORDER, SECOND_MOMENT, Trainer
from executors.node.checkpoints import Checkpoint, CheckpointStore
from executors.node.files import write_folder
from schemas.experts.workload import MoeTrainWorkload
from schemas.fleet import Loss

ORDER_TENSORS = "order.safetensors"
ADAPTER_FOLDER = "adapter"
"""In the folder of the result, which is a whole model."""


class TrainingState(BaseModel):
    """What the tensors do not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: MoeTrainWorkload
    samples_done: NonNegativeInt
    steps: NonNegativeInt
    loss: Loss | None
    dataset_digest: str


class FinishedJob(BaseModel):
    """All that is kept of a job whose result is published: what it takes to report it, once or again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: MoeTrainWorkload
    """Another job may have the same id, after its cell has begun anew; this is no result of that one."""
    samples_done: PositiveInt
    loss: Loss | None
    path: str
    """Of the result, relative to the output root."""
    adapter_path: str | None
    """None where all weights were trained."""
    adapter_digest: str | None
    """BLAKE2b-256 of the adapter's tensors."""


class JobCheckpoints:
    """One job's checkpoints on the shared store. The generation is the fencing token. Rank 0 writes."""

    def __init__(self, root: Path, job_id: str, workload: MoeTrainWorkload) -> None:
        self._store = CheckpointStore(root)
        self._job_id = job_id
        self._workload = workload

    def newest(self) -> Checkpoint | None:
        """The newest that verifies."""
        return self._store.newest(self._job_id)

    def finished(self, path: str) -> FinishedJob | None:
        """What is kept of a finished job; None where the job goes on.

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
        if not _is_same(finished.workload, self._workload):
            raise ValueError(f"the record {final.path} of a finished job is of another workload")
        if finished.path != path:
            raise ValueError(f"the record {final.path} of a finished job is of {finished.path}, not {path}")
        return finished

    def save(
        self, whole: Mapping[str, Tensor], trainer: Trainer, dataset: JsonlDataset, generation: int
    ) -> int:
        """Write what `Trainer.collect` has given, and return how many bytes it has.

        Raises:
            StaleWriterError: a later generation has written already.
            OSError: the store failed; the checkpoint before is still there.
        """
        state = TrainingState(
            workload=self._workload,
            samples_done=trainer.samples_done,
            steps=trainer.steps,
            loss=reportable(trainer.loss),
            dataset_digest=dataset.digest,
        )
        parts: dict[str, dict[str, Tensor]] = {MODEL_TENSORS: {}, OPTIMIZER_TENSORS: {}, ORDER_TENSORS: {}}
        for name, tensor in whole.items():
            parts[_file_of(name)][name] = tensor
        files = {name: save_tensors(tensors) for name, tensors in parts.items()}
        files[TRAINING_STATE] = state.model_dump_json().encode()
        self._store.save(self._job_id, generation, trainer.samples_done, files)
        return sum(map(len, files.values()))

    def read(
        self, checkpoint: Checkpoint, trainer: Trainer, dataset: JsonlDataset
    ) -> tuple[dict[str, Tensor], TrainingState]:
        """What a checkpoint holds, fit for a trainer.

        Raises:
            ValueError: it is of another job, model or format.
            DatasetError: the dataset has changed since.
        """
        names = (MODEL_TENSORS, OPTIMIZER_TENSORS, ORDER_TENSORS)
        missing = {*names, TRAINING_STATE} - checkpoint.files.keys()
        if missing:
            raise ValueError(f"the checkpoint {checkpoint.path} lacks {', '.join(sorted(missing))}")
        state = TrainingState.model_validate_json(checkpoint.files[TRAINING_STATE])
        if not _is_same(state.workload, self._workload):
            raise ValueError(f"the checkpoint {checkpoint.path} is of another workload")
        if state.dataset_digest != dataset.digest:
            raise DatasetError(f"{dataset.name}: has changed since the job was checkpointed")
        whole: dict[str, Tensor] = {}
        for name in names:
            whole |= load_tensors(checkpoint.files[name])
        trainer.check(whole)
        return whole, state

    def finish(self, finished: FinishedJob, generation: int) -> None:
        """Keep so much of the job and no checkpoint.

        Raises:
            StaleWriterError: a later generation has written already.
            OSError: the store failed; the checkpoints are still there.
        """
        content = finished.model_dump_json().encode()
        self._store.conclude(self._job_id, generation, finished.samples_done, {FINISHED_JOB: content})


def publish(
    model: MoeModel, workload: MoeTrainWorkload, trainer: Trainer, root: Path, path: str
) -> FinishedJob:
    """Write a whole trained model to `path` below the output root, where a service can load it, and in a
    folder in it the adapter, if one was trained.

    Raises:
        OSError: the disk failed.
    """
    adapter = model.adapter_files()
    write_folder(root / path, model.files())
    if adapter is not None:
        write_folder(root / path / ADAPTER_FOLDER, adapter)
    return FinishedJob(
        workload=workload,
        samples_done=trainer.samples_done,
        loss=reportable(trainer.loss),
        path=path,
        adapter_path=None if adapter is None else f"{path}/{ADAPTER_FOLDER}",
        adapter_digest=None
        if adapter is None
        else blake2b(adapter[ADAPTER_TENSORS], digest_size=32).hexdigest(),
    )


def _is_same(one: MoeTrainWorkload, other: MoeTrainWorkload) -> bool:
    """Whether both train the same, on however many ranks."""
    placed: dict[str, object] = {"ranks": 1, "experts_per_device": None}
    return one.model_copy(update=placed) == other.model_copy(update=placed)


def _file_of(name: str) -> str:
    if name.startswith((FIRST_MOMENT, SECOND_MOMENT)):
        return OPTIMIZER_TENSORS
    return ORDER_TENSORS if name.startswith(ORDER) else MODEL_TENSORS
