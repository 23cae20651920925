"""A job's files on the shared store, for processes with and without torch.

A job has its last checkpoints. The generation of the task is their fencing token.
"""

import logging
import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from executors.gang.places import checkpoint_root
from executors.node.checkpoints import Checkpoint, CheckpointStore
from schemas.base import Identifier
from schemas.fleet import Loss
from schemas.merging.commands import JobOrder
from schemas.merging.workload import TuningWorkload

PROGRESS = "tuning.json"
FINISHED_JOB = "finished.json"
OTHER_HEAD = "other_head.safetensors"
"""Of the other job of a shared run, as it was at the checkpoint."""

_log = logging.getLogger(__name__)


class JobPosition(BaseModel):
    """How far a job is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_id: Identifier
    iterations: NonNegativeInt
    drawn: NonNegativeInt
    """Samples of its own data that were used: in a shared run not a whole batch in each step."""
    is_over: bool = False


class JobProgress(BaseModel):
    """Content of a checkpoint besides the adapter's state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: TuningWorkload
    position: JobPosition
    partner: Identifier | None
    """Whom it was merged with when this was written; None outside a merge."""
    merged_at: NonNegativeInt
    """What was drawn when that merge began."""
    beside: JobPosition | None
    """How far the other job of a shared run was, whose adapter this is, too."""


class FinishedTuning(BaseModel):
    """What is kept of a finished job, besides its adapter: what it takes to report it, once or again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: TuningWorkload
    position: JobPosition
    loss: Loss | None
    path: str
    """Of the adapter, relative to the output root."""
    digest: str


def progress_of(checkpoint: Checkpoint) -> JobProgress:
    """Return the progress of the job in a checkpoint.

    Raises:
        ValueError: it is of another runner or format.
    """
    if PROGRESS not in checkpoint.files:
        raise ValueError(f"the checkpoint {checkpoint.path} lacks {PROGRESS}")
    return JobProgress.model_validate_json(checkpoint.files[PROGRESS])


class JobFiles:
    """The files of a cell's jobs."""

    def __init__(self, state_root: Path, cell: str) -> None:
        self.present = CheckpointStore(checkpoint_root(state_root, cell))
        """What jobs go on from."""
        self._meetings = state_root / cell / "tuner"

    def meeting_place(self, task_id: str) -> Path:
        """Return the folder where the ranks of a task find each other."""
        return self._meetings / task_id

    def newest(self, order: JobOrder) -> Checkpoint | None:
        """What a job goes on from, never what an undone merge has left; None if it begins anew."""
        newest = self.present.newest(order.job_id)
        return None if newest is None or newest.token < order.oldest_generation else newest

    def kept_samples(self, order: JobOrder) -> int:
        """What is left of a job if nothing of it runs."""
        newest = self.newest(order)
        return 0 if newest is None else newest.samples_done

    def undo(self, job_id: str, generation: int) -> int:
        """Have a job begin anew whose merge is undone, unless it is over or a later generation has written.

        Args:
            generation: the last one of the merge.

        Returns:
            what is left of the job, in samples.

        Raises:
            OSError: the store failed; it can be tried again.
        """
        newest = self.present.newest(job_id)
        if newest is None:
            return 0
        if self.present.is_concluded(job_id) or newest.token > generation:
            return newest.samples_done
        self.present.remove(job_id)
        _log.info("merge undone job=%s", job_id)
        return 0

    def discard(self, job_id: str) -> None:
        """Keep nothing of a job that is over for its user."""
        self.present.remove(job_id)

    def remove_meeting(self, task_id: str) -> None:
        """Remove the messages of the ranks of a task that is over."""
        shutil.rmtree(self.meeting_place(task_id), ignore_errors=True)
