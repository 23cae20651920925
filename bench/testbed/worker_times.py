"""Speeds and pauses of elastic jobs, by the log of a deployment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np

from bench.testbed.fleet import SAMPLES_PER_S
from infra.simulation.elastic.virtual_workers import VirtualWorkers, WorkerPauses, measured_steps
from infra.simulation.simulator import Step
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import RunFinished, RunProgressed
from schemas.profiles import MeasuredSteps


@dataclass(frozen=True)
class WorkerSpeeds:
    """Measured steps by number of GPUs.

    Attributes:
        samples_per_s: median speed of all GPUs together.
        exchange_parts: median part of a step for the exchange between them.
        first_report_s: median time of training until steps are first reported.
    """

    samples_per_s: Mapping[int, float] = field(default_factory=dict)
    exchange_parts: Mapping[int, float] = field(default_factory=dict)
    first_report_s: float = 1.0

    def of(self, gpus: int) -> float:
        """Return the speed of some GPUs; of a number that was not measured, by that of the nearest one."""
        if not self.samples_per_s:
            return gpus * SAMPLES_PER_S
        nearest = min(self.samples_per_s, key=lambda known: (abs(known - gpus), known))
        return self.samples_per_s[nearest] * gpus / nearest


class ObservedWorkers(VirtualWorkers):
    """See `VirtualWorkers`. Workers are as fast as measured, whatever the cell expects, and report that."""

    def __init__(self, cell: str, speeds: WorkerSpeeds, pauses: WorkerPauses) -> None:
        super().__init__(cell, 1.0, pauses, speeds.first_report_s)
        self._speeds = speeds

    def _speed(self, command: WorkersAssigned) -> float:
        return self._speeds.of(gpus_of(command))

    def _measured(self, command: WorkersAssigned, samples_per_s: float) -> MeasuredSteps:
        part = self._speeds.exchange_parts.get(gpus_of(command), 0.0)
        return measured_steps(command, samples_per_s, part)


def gpus_of(command: WorkersAssigned) -> int:
    """Return the number of GPUs of a set of workers."""
    return command.workload.gpus_per_worker * sum(member.workers for member in command.members)


@dataclass
class _WorkerSets:
    """The sets of workers that a job had, one after another."""

    assigned: list[tuple[float, WorkersAssigned]] = field(default_factory=list)
    """Time and command of each."""
    finished_s: float | None = None

    def add(self, time_s: float, command: WorkersAssigned) -> None:
        """Add a command; the members of a set get the same one."""
        if not self.assigned or self.assigned[-1][1].generation < command.generation:
            self.assigned.append((time_s, command))

    def lost(self, known: WorkerSpeeds) -> tuple[float, float] | None:
        """Return two values, or None for a job that was preempted or is not over.

        The first is the sum of the speeds of later sets, divided by that of the first set. Without pauses,
        the sets would have trained more than the job's work; the second is the time that the first set would
        need for the excess.
        """
        if self.finished_s is None or any(each.resumes for _, each in self.assigned[1:]):
            return None
        speeds = [known.of(gpus_of(each)) for _, each in self.assigned]
        times_s = [*(time_s for time_s, _ in self.assigned), self.finished_s]
        spans = (end_s - start_s for start_s, end_s in pairwise(times_s))
        trained = sum(speed * span_s for speed, span_s in zip(speeds, spans, strict=True))
        lost_samples = trained - self.assigned[0][1].workload.work_samples
        return sum(speeds[1:]) / speeds[0], lost_samples / speeds[0]


def worker_times(steps: Sequence[Step], job_ids: frozenset[str]) -> tuple[WorkerSpeeds, WorkerPauses]:
    """Measure speeds by the steps that runs report; and the pauses by least squares over jobs: a job's work
    is what its workers train in the time that their pauses leave.

    Raises:
        ValueError: none of the jobs was completed without a preemption.
    """
    jobs: defaultdict[str, _WorkerSets] = defaultdict(_WorkerSets)
    reports: list[RunProgressed] = []
    for step in steps:
        for decision in step.decisions:
            command = decision.outcome
            if isinstance(command, WorkersAssigned) and command.job_id in job_ids:
                jobs[command.job_id].add(step.time_s, command)
        match step.entry.envelope.event:
            case RunFinished() as run if run.job_id in jobs:
                jobs[run.job_id].finished_s = step.time_s
            case RunProgressed(measured=MeasuredSteps()) as run if run.job_id in jobs:
                reports.append(run)
    speeds = _speeds(reports)
    lost = [found for job in jobs.values() if (found := job.lost(speeds)) is not None]
    if not lost:
        raise ValueError("no elastic job was completed: nothing to calibrate by")
    start_s, resize_s = _pauses_s(lost)
    # A preempted job begins again, and saves its state before.
    return speeds, WorkerPauses(start_s, resize_s, preemption_s=start_s + resize_s)


def _speeds(reports: Sequence[RunProgressed]) -> WorkerSpeeds:
    by_gpus: defaultdict[int, list[MeasuredSteps]] = defaultdict(list)
    first_s: dict[str, float] = {}
    for report in reports:
        if report.measured is not None:
            by_gpus[report.measured.gpus].append(report.measured)
            first_s.setdefault(report.run_id, report.node_s)
    return WorkerSpeeds(
        {gpus: median(each.samples_per_s for each in steps) for gpus, steps in sorted(by_gpus.items())},
        {gpus: median(each.exchange_s / each.step_s for each in steps) for gpus, steps in by_gpus.items()},
        median(first_s.values()) if first_s else WorkerSpeeds.first_report_s,
    )


def _pauses_s(lost: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit the pauses of a start and of a change to the rows of `_WorkerSets.lost`; neither is negative."""
    rows = np.array([(1.0, later) for later, _ in lost])
    lost_s = np.array([each for _, each in lost])
    start_s, resize_s = np.linalg.lstsq(rows, lost_s, rcond=None)[0]
    if resize_s < 0:
        start_s, resize_s = lost_s.mean(), 0.0
    return max(float(start_s), 0.0), float(resize_s)
