"""The simulated runner of data-parallel jobs: it sends the same reports, but trains nothing."""

import math
from dataclasses import dataclass
from typing import Any

from infra.simulation.event_queue import Moments
from schemas.commands import Command
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.profiles import LEAST_STEP_S, MeasuredSteps

PREEMPTION_S = 63.0
"""Time that a preemption costs a job: its checkpoint is written, its workers end, others start elsewhere and
load it (thesis, section 3.7.5, measured on a testbed)."""
FIRST_REPORT_S = 60.0
"""Time after which workers report measured steps."""


@dataclass
class _Progress:
    """Progress of a job."""

    generation: int = 0
    """Generation of the running workers; 0 where none run."""
    samples_done: float = 0.0
    since_s: float = 0.0
    samples_per_s: float = 0.0
    """Speed since `since_s`."""

    def by(self, time_s: float) -> float:
        """Return the samples done by a time."""
        return self.samples_done + max(time_s - self.since_s, 0.0) * self.samples_per_s


class VirtualWorkers:
    """Simulated runner, as in `VirtualRunner`. Nodes share checkpoints, so a job resumes on any node."""

    def __init__(self, cell: str, pace: float) -> None:
        self._cell = cell
        self._pace = pace
        self._jobs: dict[str, _Progress] = {}

    def carry_out(self, command: Command, time_s: float, until_s: float = math.inf) -> Moments:
        """Report a run's start, and its end with the job's work or with the command that releases the node.

        A lost node sends no reports.
        """
        if isinstance(command, WorkersAssigned):
            reports = self._run(command, time_s)
        elif isinstance(command, WorkersReleased):
            reports = self._stop(command, time_s)
        else:
            return
        for report_s, report in reports:
            if report_s > until_s:
                return
            yield report_s, report

    def _run(self, command: WorkersAssigned, time_s: float) -> Moments:
        job = self._jobs.setdefault(command.job_id, _Progress())
        if job.generation < command.generation:
            self._begin(job, command, time_s)
        work = command.workload.work_samples
        yield job.since_s, None
        if job.generation != command.generation:
            return
        place = self._place(command.node, command.run_id, command.job_id)
        is_leader = command.node == command.members[0].node
        if is_leader:
            yield job.since_s, RunStarted(**place, samples_done=min(int(job.samples_done), work))
        end_s = job.since_s + max(work - job.samples_done, 0.0) / job.samples_per_s
        report_s, steps = job.since_s + FIRST_REPORT_S, self._measured(command, job.samples_per_s)
        if is_leader and steps is not None and report_s < end_s:
            yield report_s, None
            if job.generation != command.generation:
                return
            done = int(job.by(report_s))
            yield (
                report_s,
                RunProgressed(
                    **place, samples_done=done, node_s=FIRST_REPORT_S, measured=steps, complete=False
                ),
            )
        yield end_s, None
        if job.generation != command.generation:
            return
        if is_leader:
            yield end_s, RunFinished(**place, samples_done=work)
            self._jobs.pop(command.job_id, None)
        else:
            node_s = end_s - job.since_s
            yield end_s, RunProgressed(**place, samples_done=work, node_s=node_s, complete=True)

    def _begin(self, job: _Progress, command: WorkersAssigned, time_s: float) -> None:
        done = command.resume_samples if command.resumes else job.by(time_s)
        lost_s = PREEMPTION_S if command.resumes and command.generation > 1 else 0.0
        job.generation, job.samples_done, job.since_s = command.generation, done, time_s + lost_s
        job.samples_per_s = self._speed(command)

    def _speed(self, command: WorkersAssigned) -> float:
        """Return the true speed of some workers together (samples/s)."""
        return self._pace * command.expected_samples_per_s

    def _measured(self, command: WorkersAssigned, samples_per_s: float) -> MeasuredSteps | None:
        """Return the steps that workers of some speed report first; None for a job with a declared speed,
        whose speed is not in question here."""
        return measured_steps(command, samples_per_s) if command.workload.samples_per_s is None else None

    def _stop(self, command: WorkersReleased, time_s: float) -> Moments:
        job = self._jobs.setdefault(command.job_id, _Progress())
        done = int(job.by(time_s))
        if command.reason != "scaled_in" and job.generation == command.generation:
            job.samples_done, job.since_s, job.samples_per_s, job.generation = done, time_s, 0.0, 0
        run_id = f"{command.generation}/{command.job_id}"
        place = self._place(command.node, run_id, command.job_id)
        node_s = max(time_s - job.since_s, 0.0)
        yield time_s, RunProgressed(**place, samples_done=done, node_s=node_s, complete=True)

    def _place(self, node: str, run_id: str, job_id: str) -> dict[str, Any]:
        return {"cell": self._cell, "node": node, "run_id": run_id, "job_id": job_id}


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
        tokens_per_sample=1.0,
        steps=max(int(FIRST_REPORT_S / step_s), 1),
        precision="bfloat16",
        gpus=gpus,
        samples_per_step=batch,
        exchange_s=exchange_part * step_s,
    )
