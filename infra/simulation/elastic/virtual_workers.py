"""The simulated runner of data-parallel jobs: it sends the same reports, but trains nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from infra.simulation.event_queue import Moments
from infra.simulation.gangs import VirtualGangs, VirtualJob
from schemas.commands import Command
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.profiles import LEAST_STEP_S, MAX_TOKENS_PER_GPU_S, MeasuredSteps

PREEMPTION_S = 63.0
"""Time that a preemption costs a job (thesis, section 3.7.5, measured on a testbed). In it, a checkpoint is
written, the workers end, and new workers start elsewhere and load the checkpoint."""
FIRST_REPORT_S = 60.0
"""Time after which workers first report measured steps, and interval to the second such report."""
REPORT_INTERVAL_S = 900.0
"""Interval of later reports. Real workers report more often, with the same content. A zone counts a run as
lost if it does not report for `order_timeout_s`."""


@dataclass(frozen=True)
class WorkerPauses:
    """Times without progress of a job whose workers begin (s). By default only preemptions cost time, as in
    the thesis' simulator; `bench/testbed` measures all of them."""

    start_s: float = 0.0
    """Time from the command of a new job to its first step, and from its last step to the report."""
    resize_s: float = 0.0
    """Time that a change of a running job's workers costs."""
    preemption_s: float = PREEMPTION_S


class VirtualWorkers(VirtualGangs[VirtualJob]):
    """See `VirtualGangs`. Workers are as fast as the cell expects."""

    def __init__(
        self,
        cell: str,
        pace: float,
        pauses: WorkerPauses = WorkerPauses(),
        first_report_s: float = FIRST_REPORT_S,
    ) -> None:
        super().__init__(cell, pace)
        self._pauses = pauses
        self._first_report_s = first_report_s

    def reports(self, command: Command, time_s: float) -> Moments:
        """Report a run's start, and its end with the job's work or with the command that releases the
        node."""
        if isinstance(command, WorkersAssigned):
            yield from self._run(command, time_s)
        elif isinstance(command, WorkersReleased):
            yield from self.release(command, time_s, continues=command.reason == "scaled_in")

    def _run(self, command: WorkersAssigned, time_s: float) -> Moments:
        job = self._jobs.setdefault(command.job_id, VirtualJob())
        if job.generation < command.generation:
            self._begin(job, command, time_s)
        work = command.workload.work_samples
        end_s = job.since_s + max(work - job.samples_done, 0.0) / job.samples_per_s
        yield job.since_s, None
        fields = self.run_fields(command.node, command.run_id, command.job_id)
        is_leader = command.node == command.members[0].node
        if is_leader:
            yield job.since_s, RunStarted(**fields, samples_done=min(int(job.samples_done), work))
        steps, began_s = self._measured(command, job.samples_per_s) if is_leader else None, job.since_s
        for node_s in self._reports_s() if steps is not None else ():
            report_s = began_s + node_s
            if report_s >= end_s:
                break
            yield report_s, None
            done = int(job.samples_by(report_s))
            yield (
                report_s,
                RunProgressed(**fields, samples_done=done, node_s=node_s, measured=steps, complete=False),
            )
        yield end_s, None
        if is_leader:
            yield end_s, RunFinished(**fields, samples_done=work)
            job.samples_done, job.samples_per_s = work, 0.0
        else:
            node_s = end_s - job.since_s
            yield end_s, RunProgressed(**fields, samples_done=work, node_s=node_s, complete=True)

    def _begin(self, job: VirtualJob, command: WorkersAssigned, time_s: float) -> None:
        job.samples_done = command.resume_samples if command.resumes else job.samples_by(time_s)
        job.samples_per_s = self._speed(command)
        job.generation, job.since_s = command.generation, time_s + self._pause_s(command)

    def _reports_s(self) -> Iterator[float]:
        """Yield the times of a run's reports of progress, from its start."""
        yield self._first_report_s
        yield from count(2 * self._first_report_s, REPORT_INTERVAL_S)

    def _pause_s(self, command: WorkersAssigned) -> float:
        if command.generation == 1:
            return self._pauses.start_s
        return self._pauses.preemption_s if command.resumes else self._pauses.resize_s

    def _speed(self, command: WorkersAssigned) -> float:
        """Return the true speed of some workers together (samples/s)."""
        return self._pace * command.expected_samples_per_s

    def _measured(self, command: WorkersAssigned, samples_per_s: float) -> MeasuredSteps | None:
        """Return the steps that workers of some speed report first; None for a job with a declared speed,
        since the declaration is assumed to be true here."""
        return measured_steps(command, samples_per_s) if command.workload.samples_per_s is None else None


def measured_steps(
    command: WorkersAssigned, samples_per_s: float, exchange_part: float = 0.0
) -> MeasuredSteps:
    """Return the steps of some workers.

    Args:
        samples_per_s: speed of all together.
        exchange_part: part of a step for the exchange between GPUs.
    """
    shape = command.workload.hyperparameters
    batch, gpus = shape.global_batch_size, command.workload.gpus_per_worker
    gpus *= sum(member.workers for member in command.members)
    step_s = min(max(batch / samples_per_s, LEAST_STEP_S), 86_400.0)
    return MeasuredSteps(
        micro_batch_size=min(shape.micro_batch_size, -(-batch // gpus)),
        step_s=step_s,
        tokens_per_sample=min(shape.sequence_length, MAX_TOKENS_PER_GPU_S * step_s * gpus / batch),
        steps=max(int(FIRST_REPORT_S / step_s), 1),
        precision="bfloat16",
        gpus=gpus,
        samples_per_step=batch,
        exchange_s=exchange_part * step_s,
    )
