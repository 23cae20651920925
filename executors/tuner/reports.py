"""Reports of the leader of a task about its jobs."""

from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from executors.gang.reports import reportable
from executors.tuner.files import FinishedTuning
from executors.tuner.keeper import TaskKeeper
from executors.tuner.messages import TaskPart, TaskReport
from executors.tuner.opening import TrainingJob
from executors.tuner.rank_resources import RankResources
from executors.tuner.training import TrainingStep
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import JobOrder
from schemas.merging.reports import MeasuredStep, TaskEvaluated

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
        about = self._about(job.order, job.samples_done)
        self._soon(RunStarted(**about, dataset_samples=len(job.loader.training)))
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
            TaskEvaluated(
                **self._about(job.order, job.samples_done),
                iterations=job.iterations,
                epochs=epochs,
                loss=reportable(sum(losses) / len(losses)) if losses else None,
                accuracy=accuracy,
                phase=phase,
                partner=partner,
                step=step,
            )
        )

    def progressed(self, order: JobOrder, samples_done: int, loss: float | None, node_s: float) -> None:
        """Report a checkpoint of a job that continues."""
        about = self._about(order, samples_done)
        self._send(RunProgressed(**about, loss=reportable(loss), node_s=node_s, complete=False))

    def finished(self, job: TrainingJob, finished: FinishedTuning) -> None:
        """Report a job that is over, with its published adapter."""
        self.ended.add(job.order.run_id)
        self._send(
            RunFinished(
                **self._about(job.order, finished.position.iterations * job.batch_size),
                loss=finished.loss,
                adapter_path=finished.path,
                adapter_digest=finished.digest,
            )
        )

    def failed(self, order: JobOrder, samples_done: int, error: str, permanent: bool) -> None:
        """Report the failure of a job, unless its end is reported."""
        if order.run_id not in self.ended:
            self.ended.add(order.run_id)
            self._send(RunFailed(**self._about(order, samples_done), error=error, permanent=permanent))

    def _about(self, order: JobOrder, samples_done: int) -> dict[str, Any]:
        return {
            "cell": self._around.cell,
            "node": self._around.node,
            "run_id": order.run_id,
            "job_id": order.job_id,
            "samples_done": samples_done,
        }

    def _soon(self, report: RunReport) -> None:
        self._keeper.submit(lambda: self._send(report))

    def _send(self, report: RunReport) -> None:
        self._around.inbox.send(
            TaskReport(part=self._part.part, type=report.TYPE, data=report.model_dump(mode="json"))
        )


def measured_step(
    steps: Sequence[TrainingStep], micro_batch_size: int, share_size: int, gpus: int, nodes: int
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
    )
