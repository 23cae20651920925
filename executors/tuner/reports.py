"""Reports of the leader of a task about its jobs, and its writes of checkpoints and results."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal, cast, get_args

from executors.lora.lora_task import BYTES_PER_PARAMETER, AdapterState
from executors.lora.shared_base import SharedBase
from executors.node.losses import reportable
from executors.node.run_reports import RunReports
from executors.tuner.checkpoints import NO_HEAD, SavedJob, head_of, own_state
from executors.tuner.files import FinishedTuning, JobProgress
from executors.tuner.keeper import TaskKeeper
from executors.tuner.messages import TaskPart
from executors.tuner.opening import TrainingJob, task_state
from executors.tuner.rank_resources import RankResources
from executors.tuner.training import TrainingStep
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import JobOrder, TaskAssigned
from schemas.merging.reports import MeasuredStep, TaskEvaluated
from schemas.profiles import Precision

_LEAST_S = 1e-6
"""Least duration of a step: the clock may not have moved."""


class TaskReports:
    """Sends reports to the node. A report by `..._soon` is sent after the pending writes.

    Attributes:
        ended: runs whose end is reported.
    """

    def __init__(self, part: TaskPart, around: RankResources, keeper: TaskKeeper) -> None:
        self._part = part
        self._around = around
        self._keeper = keeper
        self.ended: set[str] = set()

    def started_soon(self, job: TrainingJob) -> None:
        """Report the start of a job; a job that was over before is reported again."""
        self._soon(job.order, RunStarted, job.samples_done, dataset_samples=len(job.loader.training))
        finished = job.finished
        if finished is not None:
            self._keeper.submit(lambda: self.finished(job, finished))

    def evaluated_soon(
        self,
        job: TrainingJob,
        partner: str | None,
        accuracy: float,
        phase: Literal["own", "donor"],
        epochs: float,
        losses: Sequence[float],
        step: MeasuredStep | None,
    ) -> None:
        """Report an evaluation; `losses` and `step` cover the time since the previous one."""
        self._soon(
            job.order,
            TaskEvaluated,
            job.samples_done,
            iterations=job.iterations,
            epochs=epochs,
            loss=reportable(sum(losses) / len(losses)) if losses else None,
            accuracy=accuracy,
            phase=phase,
            partner=partner,
            step=step,
        )

    def progressed(self, order: JobOrder, samples_done: int, loss: float | None, node_s: float) -> None:
        """Report a checkpoint of a job that continues."""
        fields = {"loss": reportable(loss), "node_s": node_s, "complete": False}
        self._of(order).report(RunProgressed, samples_done, **fields)

    def finished(self, job: TrainingJob, finished: FinishedTuning) -> None:
        """Report a job that is over, with its published adapter."""
        self.ended.add(job.order.run_id)
        self._of(job.order).report(
            RunFinished,
            finished.position.iterations * job.batch_size,
            loss=finished.loss,
            adapter_path=finished.path,
            adapter_digest=finished.digest,
        )

    def failed(self, order: JobOrder, samples_done: int, error: str, permanent: bool) -> None:
        """Report the failure of a job, unless its end is reported."""
        if order.run_id not in self.ended:
            self.ended.add(order.run_id)
            self._of(order).report(RunFailed, samples_done, error=error, permanent=permanent)

    def _of(self, order: JobOrder) -> RunReports:
        return self._around.reports_of(self._part.part, order)

    def _soon(self, order: JobOrder, kind: type[RunReport], samples_done: int, **fields: Any) -> None:
        self._keeper.submit(lambda: self._of(order).report(kind, samples_done, **fields))


def measured_step(
    steps: Sequence[TrainingStep],
    micro_batch_size: int,
    share_size: int,
    gpus: int,
    nodes: int,
    base: SharedBase,
) -> MeasuredStep:
    """Return the measurement of a configuration from its steps.

    Args:
        share_size: sequences of a step on one rank.
    """
    size = max(1, min(micro_batch_size, share_size))
    return MeasuredStep(
        gpus=gpus,
        nodes=nodes,
        micro_batch_size=size,
        accumulation_steps=max(1, -(-share_size // size)),
        step_s=max(median(step.step_s for step in steps), _LEAST_S),
        exchange_s=median(step.exchange_s for step in steps) if gpus > 1 else 0.0,
        steps=len(steps),
        precision=cast(Precision, base.precision) if base.precision in get_args(Precision) else None,
    )


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
            self._keeper.needed_bytes = BYTES_PER_PARAMETER * job.layout.size
            saved = self._saved(job, state(), progress)
            finished = self._checkpoints.finish(saved, job.order.user, loss, self._command.generation)
            self.samples.pop(job.job_id, None)
            self._reports.finished(job, finished)

        self._keeper.submit(publish)

    def _write(self, job: TrainingJob, state: Callable[[], AdapterState]) -> None:
        progress, samples_done = self._progress(job), job.samples_done

        def write() -> None:
            self._keeper.needed_bytes = BYTES_PER_PARAMETER * job.layout.size
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
