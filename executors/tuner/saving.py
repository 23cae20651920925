"""Writes of the leader of a task for its jobs, during the training."""

import time
from collections.abc import Callable, Sequence

from executors.gang.reports import reportable
from executors.lora.task import AdapterState
from executors.tuner.checkpoints import NO_HEAD, SavedJob
from executors.tuner.files import JobProgress
from executors.tuner.heads import head_of, own_state
from executors.tuner.keeper import TaskKeeper
from executors.tuner.opening import TrainingJob, task_state
from executors.tuner.rank_resources import RankResources
from executors.tuner.reports import TaskReports
from schemas.merging.commands import TaskAssigned

_BYTES_PER_PARAMETER = 12
"""A parameter and AdamW's two moments, in float32."""


class TaskSaves:
    """Schedules the writes of checkpoints and results, and their reports.

    Attributes:
        samples: samples in the checkpoint of each job that is not over.
        saved_s: time of the last checkpoint, on the monotonic clock.
    """

    def __init__(
        self, command: TaskAssigned, around: RankResources, keeper: TaskKeeper, reports: TaskReports
    ) -> None:
        self._command = command
        self._checkpoints = around.checkpoints
        self._keeper = keeper
        self._reports = reports
        self._jobs: list[TrainingJob] = []
        self.samples: dict[str, int] = {}
        self.saved_s = time.monotonic()

    def begin(self, jobs: list[TrainingJob]) -> None:
        """Set the task's jobs, at their positions on disk."""
        self._jobs = jobs
        self.samples = {job.job_id: job.samples_done for job in jobs if not job.is_over}

    def save(self, jobs: Sequence[TrainingJob], state: AdapterState, node_s: float) -> None:
        """Write the state during the training."""
        self.saved_s = time.monotonic()
        for job in jobs:
            self._write(job, lambda: state)
            self._report(job, node_s)

    def save_at_last(self, jobs: Sequence[TrainingJob], state: Callable[[], AdapterState]) -> None:
        """Write the state after the last step, while the next task begins."""
        for job in jobs:
            if not job.is_over and job.iterations:
                self._write(job, state)

    def finish(self, job: TrainingJob, state: Callable[[], AdapterState]) -> None:
        """Publish a job that is over."""
        progress, loss = self._progress(job), reportable(job.loss)

        def publish() -> None:
            self._keeper.needed_bytes = _BYTES_PER_PARAMETER * job.layout.size
            saved = self._saved(job, state(), progress)
            finished = self._checkpoints.finish(saved, job.order.user, loss, self._command.generation)
            self.samples.pop(job.job_id, None)
            self._reports.finished(job, finished)

        self._keeper.submit(publish)

    def _write(self, job: TrainingJob, state: Callable[[], AdapterState]) -> None:
        progress, samples_done = self._progress(job), job.samples_done

        def write() -> None:
            self._keeper.needed_bytes = _BYTES_PER_PARAMETER * job.layout.size
            self._checkpoints.save(self._saved(job, state(), progress), self._command.generation)
            self.samples[job.job_id] = samples_done

        self._keeper.submit(write)

    def _report(self, job: TrainingJob, node_s: float) -> None:
        order, samples_done, loss = job.order, job.samples_done, job.loss
        self._keeper.submit(lambda: self._reports.progressed(order, samples_done, loss, node_s))

    def _saved(self, job: TrainingJob, state: AdapterState, progress: JobProgress) -> SavedJob:
        own = task_state(job, own_state(job.layout, state, job.head), progress.position)
        is_shared = self._command.mode == "spatial"
        return SavedJob(own, progress, head_of(job.layout, state, 1 - job.head) if is_shared else NO_HEAD)

    def _progress(self, job: TrainingJob) -> JobProgress:
        other = next((each for each in self._jobs if each is not job), None)
        return JobProgress(
            workload=job.order.workload,
            position=job.position,
            partner=None if other is None else other.job_id,
            merged_at=job.merged_at,
            beside=other.position if other is not None and self._command.mode == "spatial" else None,
        )
