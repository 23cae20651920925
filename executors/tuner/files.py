"""Files of a job on the shared store, for processes with and without torch.

A job has its last checkpoints; the generation of the task is their fencing token.
"""

import logging
import shutil
from pathlib import Path

from pydantic import NonNegativeInt

from executors.node.job_states import FinishedRecord, JobStates
from executors.node.places import checkpoint_root
from schemas.base import Identifier, Record
from schemas.fleet import Loss
from schemas.merging.commands import JobOrder
from schemas.merging.workload import TuningWorkload

OTHER_HEAD = "other_head.safetensors"
"""Head of the other job of a shared run, as of the checkpoint."""

_log = logging.getLogger(__name__)


class JobPosition(Record):
    """Progress of a job in its data."""

    job_id: Identifier
    iterations: NonNegativeInt
    drawn: NonNegativeInt
    """Samples of its own data that were used: in a shared run less than a whole batch per step."""
    is_over: bool = False


class JobProgress(Record):
    """Content of a checkpoint besides the adapter's state."""

    workload: TuningWorkload
    position: JobPosition
    partner: Identifier | None
    """The job it was merged with when this was written; None outside a merge."""
    merged_at: NonNegativeInt
    """Samples drawn when that merge began."""
    beside: JobPosition | None
    """Position of the other job of a shared run, which uses the same adapter."""


class FinishedTuning(FinishedRecord):
    """See `FinishedRecord`. The adapter is kept besides."""

    workload: TuningWorkload
    position: JobPosition
    loss: Loss | None
    path: str
    digest: str

    @property
    def identity(self) -> tuple[object, str]:
        return self.workload, self.path


class JobFiles(JobStates[JobProgress, FinishedTuning]):
    """Files of a cell's jobs."""

    ABOUT_FILE = "tuning.json"
    ABOUT = JobProgress
    FINISHED = FinishedTuning

    def __init__(self, state_root: Path, cell: str) -> None:
        super().__init__(checkpoint_root(state_root, cell))
        self._meetings = state_root / cell / "tuner"

    def meeting_place(self, task_id: str) -> Path:
        """Return the folder of the ranks' meetings of a task."""
        return self._meetings / task_id

    def kept_samples(self, order: JobOrder) -> int:
        """Return the samples of a job that are kept if it has no runs."""
        newest = self.newest(order.job_id, order.oldest_generation)
        return 0 if newest is None else newest.samples_done

    def undo(self, job_id: str, generation: int) -> int:
        """Reset a job whose merge is undone to its state before, unless it is over or a later generation
        wrote a checkpoint.

        Args:
            generation: the last generation of the merge.

        Returns:
            the samples of the job that are kept.

        Raises:
            OSError: the store failed; a retry is possible.
        """
        newest = self.newest(job_id)
        if newest is None:
            return 0
        if self.store.is_concluded(job_id) or newest.token > generation:
            return newest.samples_done
        self.store.remove(job_id)
        _log.info("merge undone job=%s", job_id)
        return 0

    def discard(self, job_id: str) -> None:
        """Remove the files of a job that is over for its user."""
        self.store.remove(job_id)

    def remove_meeting(self, task_id: str) -> None:
        """Remove the messages of the ranks of a task that is over."""
        shutil.rmtree(self.meeting_place(task_id), ignore_errors=True)
